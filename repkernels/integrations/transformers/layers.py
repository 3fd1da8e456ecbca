"""The layers of a decoder over this library's operations, as classes to put above transformers' own."""

import math
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike
from repkernels.integrations.transformers.residuals import Normed
from repkernels.integrations.transformers.variants import Variant
from repkernels.nn import functional
from repkernels.prepare import Keep, Prepared, prepare
from repkernels.rotary import rope_frequencies


class NotCovered(Exception):
    """Why a module cannot be taken over."""


class RMSNorm(Normed, Variant):
    """x / rms(x) * weight, as `nn.functional.rms_norm`: the weight is multiplied before the one rounding."""

    def scale(self: Any) -> tuple[Tensor, float]:
        return self.weight, self.variance_epsilon


class OffsetRMSNorm(Normed, Variant):
    """Gemma's: x / rms(x) * RN32(1 + weight)."""

    def scale(self: Any) -> tuple[Tensor, float]:
        return 1.0 + self.weight.float(), self.eps


class ScaledEmbedding(Variant):
    """Gemma's: rows of the weight, times a number rounded to the weight's type."""

    def forward(self: Any, input_ids: Tensor) -> Tensor:
        rows = functional.embedding(input_ids, self.weight, self.padding_idx)
        return rows * self.embed_scale.to(self.weight.dtype)


class SiLU(Variant):
    def forward(self: Any, input: Tensor) -> Tensor:
        return functional.silu(input)


class GELU(Variant):
    def forward(self: Any, input: Tensor) -> Tensor:
        return functional.gelu(input)


class GELUTanh(Variant):
    def forward(self: Any, input: Tensor) -> Tensor:
        return functional.gelu(input, approximate="tanh")


class GatedMLP(Variant):
    """down(act(gate(x)) * up(x)), with act(gate) rounded to the model's type before the product."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.down_proj(gated(self.act_fn, self.gate_proj(x), self.up_proj(x)))


class FusedGatedMLP(Variant):
    """Phi3's: gate and up are the halves of one projection."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(gated(self.activation_fn, gate, up))


def gated(activation: torch.nn.Module, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, for an activation that is one of this module's."""
    if isinstance(activation, SiLU):
        return functional.swiglu(gate, up)
    approximate = "tanh" if isinstance(activation, GELUTanh) else "none"
    return functional.geglu(gate, up, approximate=approximate)


class Rotary(Variant):
    """cos and sin of the positions' angles, correctly rounded; the frequencies are those of `nn.rope_frequencies`."""

    def forward(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        frequencies, scaling = self.frequencies_on(x.device, layer_type)
        return functional.rope_cos_sin(position_ids, frequencies, scaling, x.dtype)

    def frequencies_on(self: Any, device: torch.device, layer_type: str | None) -> tuple[Tensor, float]:
        kept = self.__dict__.setdefault("_repkernels_frequencies", {})
        if (layer_type, device) not in kept:
            frequencies, scaling = rotary_frequencies(self, layer_type)
            kept[layer_type, device] = frequencies.to(device), scaling
        found: tuple[Tensor, float] = kept[layer_type, device]
        return found


def rotary_frequencies(rotary: Any, layer_type: str | None = None) -> tuple[Tensor, float]:
    """(inv_freq, scaling) of a module like LlamaRotaryEmbedding. Raises NotCovered where they follow the batch."""
    config = rotary.config
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    try:
        return rope_frequencies(head_dim, parameters, max_position_embeddings=config.max_position_embeddings)
    except (NotImplementedError, ValueError) as error:
        raise NotCovered(f"its frequencies: {error}") from error


def check_rotary(rotary: Any) -> None:
    """Raises NotCovered where this library's frequencies are not those that the module was made with."""
    layer_types = getattr(rotary, "layer_types", None)
    for layer_type in [None] if layer_types is None else layer_types:
        prefix = "" if layer_type is None else f"{layer_type}_"
        if layer_type is not None and layer_type not in rotary.rope_type:
            continue
        theirs, scaling = getattr(rotary, f"{prefix}inv_freq"), getattr(rotary, f"{prefix}attention_scaling")
        ours, our_scaling = rotary_frequencies(rotary, layer_type)
        # A model cast to a half type has its frequencies cast too.
        close = 1e-5 if theirs.dtype == torch.float32 else 1e-2
        if theirs.is_meta:
            raise NotCovered("it is on the meta device; enable the model once it is materialised")
        same = ours.shape == theirs.shape and torch.allclose(ours, theirs.float().cpu(), rtol=close, atol=0.0)
        if not same or not math.isclose(scaling, our_scaling, rel_tol=1e-5):
            raise NotCovered("its frequencies are not those of its configuration")


class Attention(Variant):
    """transformers' forward, with `apply_rotary_pos_emb` of this library in its scope."""

    contract: ContractLike | None = None

    @classmethod
    def attributes(cls, theirs: type) -> dict[str, Any]:
        ours = {"apply_rotary_pos_emb": functional.apply_rotary_pos_emb}
        return {"forward": with_globals(theirs.forward, ours)}  # type: ignore[attr-defined]


def with_globals(function: Any, replaced: dict[str, Any]) -> Any:
    """The function, decorators included, with other objects under some of its global names.

    Raises NotCovered for a function that does not use these names.
    """
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        if not isinstance(function, FunctionType) or any(name not in function.__code__.co_names for name in replaced):
            raise NotCovered(f"its forward does not call {', '.join(replaced)}")
        return _copy(function, {**function.__globals__, **replaced}, function.__closure__)
    rebound = with_globals(inner, replaced)
    cells = tuple(CellType(rebound) if c.cell_contents is inner else c for c in function.__closure__ or ())
    copied = _copy(function, function.__globals__, cells)
    copied.__wrapped__ = rebound
    return copied


def _copy(function: Any, names: dict[str, Any], closure: Any) -> Any:
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(function.__dict__)
    copied.__qualname__, copied.__doc__ = function.__qualname__, function.__doc__
    copied.__annotations__, copied.__module__ = function.__annotations__, function.__module__
    return copied


class TopKRouter(Variant):
    """The experts of each token and their weights: ties go to the lowest expert."""

    contract: ContractLike | None = None

    def forward(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = hidden_states.reshape(-1, self.hidden_dim)
        logits = functional.linear(rows, self.weight, contract=self.contract)
        weights, experts = functional.topk_router(logits, self.top_k, getattr(self, "norm_topk_prob", True))
        # Qwen's router has a norm_topk_prob, and rounds the weights to the model's type.
        return logits, weights.to(logits.dtype) if hasattr(self, "norm_topk_prob") else weights, experts


class Experts(Variant):
    """The sum of each token's experts, in the order of its router."""

    contract: ContractLike | None = None
    _kept: tuple[Prepared, Prepared] | None = None

    def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        gate_up, down = (self.gate_up_proj, self.down_proj) if self._kept is None else self._kept
        activation = next(name for ours, name in ACTIVATION_NAMES.items() if isinstance(self.act_fn, ours))
        return functional.moe(
            hidden_states, top_k_index, top_k_weights, gate_up, down, activation, contract=self.contract
        )

    def prepare(self: Any, keep: Keep | None) -> None:
        """As `nn.Linear.prepare`."""
        weights = (self.gate_up_proj, self.down_proj)
        self._kept = None if keep is None else tuple(prepare(w, self.contract, keep) for w in weights)

    def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[misc]
        if self._kept is not None:
            self.prepare(self._kept[0].keep)
        return self


ACTIVATION_NAMES = {SiLU: "silu", GELU: "gelu", GELUTanh: "gelu_tanh"}
