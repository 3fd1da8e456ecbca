"""A decoder layer's sums with its residual, each in one launch with the norm that reads it, in inference.

The sum carries the norm's result, which the norm finds there when it is called: hooks and recorded outputs see the
tensors that they see otherwise, and no bit changes.
"""

import inspect
from typing import Any

import torch
from torch import Tensor

from repkernels.integrations.transformers.variants import Variant
from repkernels.nn import functional

_NORMED = "_repkernels_normed"
_NEXT = "_repkernels_next"
LEFT = (_NEXT,)


class Normed:
    """A norm by `functional.rms_norm`; of a sum that carries its result it returns that."""

    def scale(self: Any) -> tuple[Tensor, float]:
        """The weight, and eps."""
        raise NotImplementedError

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        found = carried(hidden_states, self)
        if found is not None:
            return found
        weight, eps = self.scale()
        return functional.rms_norm(hidden_states, weight.shape, weight, eps)


def _watched() -> bool:
    """Whether the two operations have to stay apart: for gradients, compilers, or as nobody counts the sum's writes."""
    return torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch.compiler.is_compiling()


def carried(hidden_states: Tensor, norm: Any) -> Tensor | None:
    """The result of `norm`, once, if this is a sum that carries it and has not been written since."""
    if _watched():
        return None
    of, version, normed = vars(hidden_states).pop(_NORMED, (None, 0, None))
    return normed if of is norm and version == hidden_states._version else None


def added(residual: Tensor, x: Tensor, norm: Any) -> Tensor:
    """residual + x; `norm`, if it is `Normed`, is to be called with it."""
    fits = residual.shape == x.shape and residual.dtype == x.dtype and residual.device == x.device
    if not isinstance(norm, Normed) or not fits or _watched():
        return residual + x
    weight, eps = norm.scale()
    normed, total = functional.add_rms_norm(residual, x, weight.shape, weight, eps)
    vars(total)[_NORMED] = norm, total._version, normed
    return total


class DecoderLayer(Variant):
    """attention of the norm, added; the MLP of the norm of that, added."""

    _repkernels_defaults: dict[str, Any]

    @classmethod
    def attributes(cls, theirs: type) -> dict[str, Any]:
        """What theirs passes on to the attention, where it is given nothing."""
        parameters = inspect.signature(theirs.forward).parameters.values()  # type: ignore[attr-defined]
        return {"_repkernels_defaults": {p.name: p.default for p in parameters if p.default is not p.empty}}

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or _watched():
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        normed = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(hidden_states=normed, **{**self._repkernels_defaults, **kwargs})
        hidden_states = added(hidden_states, attended, self.post_attention_layernorm)
        computed = self.mlp(self.post_attention_layernorm(hidden_states))
        return added(hidden_states, computed, *vars(self).get(_NEXT, (None,)))


def link(layers: Any, last: Any) -> None:
    """Tells each layer the norm after it. last: that after all of them."""
    for layer, following in zip(
        layers, [*(getattr(x, "input_layernorm", None) for x in layers[1:]), last], strict=True
    ):
        if isinstance(layer, DecoderLayer):
            vars(layer)[_NEXT] = (following,)  # no submodule of the layer


def has_this_form(theirs: Any) -> bool:
    """Whether a layer's forward is what `DecoderLayer` computes: its code is that of one of the forms below."""
    code = inspect.unwrap(theirs.forward).__code__
    return any(
        code.co_code == form.__code__.co_code and code.co_names == form.__code__.co_names
        for form in (_usual_form, _form_of_mixtral)
    )


def _usual_form(
    self: Any,
    hidden_states: Any,
    attention_mask: Any = None,
    position_ids: Any = None,
    cache: Any = None,
    use_cache: Any = False,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> Any:
    residual = hidden_states
    hidden_states = self.input_layernorm(hidden_states)
    hidden_states, _ = self.self_attn(
        hidden_states=hidden_states,
        attention_mask=attention_mask,
        position_ids=position_ids,
        cache=cache,
        use_cache=use_cache,
        position_embeddings=position_embeddings,
        **kwargs,
    )
    hidden_states = residual + hidden_states
    residual = hidden_states
    hidden_states = self.post_attention_layernorm(hidden_states)
    hidden_states = self.mlp(hidden_states)
    hidden_states = residual + hidden_states
    return hidden_states  # noqa: RET504


def _form_of_mixtral(
    self: Any,
    hidden_states: Any,
    position_embeddings: Any = None,
    attention_mask: Any = None,
    position_ids: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    residual = hidden_states
    hidden_states = self.input_layernorm(hidden_states)
    hidden_states, _ = self.self_attn(
        hidden_states=hidden_states,
        position_embeddings=position_embeddings,
        attention_mask=attention_mask,
        position_ids=position_ids,
        cache=cache,
        **kwargs,
    )
    hidden_states = residual + hidden_states
    residual = hidden_states
    hidden_states = self.post_attention_layernorm(hidden_states)
    hidden_states = self.mlp(hidden_states)
    hidden_states = residual + hidden_states
    return hidden_states  # noqa: RET504
