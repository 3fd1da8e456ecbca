"""`enable` and `disable`: a stock model's layers become this library's, in place, or nothing changes at all."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from repkernels.contract import DEFAULTS, ContractLike, as_pair, get_contract, resolve
from repkernels.integrations.transformers import attention, layers, residuals, versions
from repkernels.integrations.transformers.families import FAMILIES, counterparts
from repkernels.integrations.transformers.sharing import SharedLinear, separate, share
from repkernels.integrations.transformers.variants import Variant, original, variant
from repkernels.nn import Linear
from repkernels.nn.conversion import _chosen
from repkernels.prepare import Keep

Model = TypeVar("Model", bound=torch.nn.Module)
_CONTRACTING = (Linear, layers.Attention, layers.Experts, layers.TopKRouter)
_ORIGINAL = "_repkernels_attention"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class UnsupportedModel(NotImplementedError):
    """What `enable` raises for a model that it leaves unchanged. reasons: by the path of each module, "" the model."""

    def __init__(self, model: str, reasons: dict[str, list[str]]) -> None:
        super().__init__(model, reasons)
        self.model, self.reasons = model, reasons

    def __str__(self) -> str:
        lines = [f"  {path or '(the model)'}: {reason}" for path, found in self.reasons.items() for reason in found]
        return "\n".join(
            [
                f"model: {self.model} cannot be served reproducibly as it is, so nothing was changed:",
                *lines,
                f"supported are models of {', '.join(FAMILIES)} (SmolLM2 is a llama) in fp32, bf16 and fp16",
            ]
        )


def enable(
    model: Model,
    contract: ContractLike | None = None,
    *,
    contracts: Mapping[str, ContractLike | None] | None = None,
    prepare: bool | Keep = True,
) -> Model:
    """Makes every operation of a transformers model this library's, in place, and returns the model.

    model: a PreTrainedModel of a supported family (`FAMILIES`), as `from_pretrained` or its configuration makes it, in
        fp32, bf16 or fp16. Modules change their class: parameters, ties, state_dict, `.to()`, copies and pickles stay.
    contract: of every contraction, attention included, bound to the modules, since continuous batching runs in a thread
        of its own. None: the contract in force now, or the default of the model's dtype.
    contracts: contracts by patterns of module paths, as for `repkernels.convert`: {"lm_head": "fixed24"}.
    prepare: whether linear layers and experts keep the digits of their weights (`nn.Linear.prepare`): True or "digits"
        for speed (S bytes per element beside the weight: 2 under `fixed16`), "scales" for memory, False for neither.
        Unless it is False, projections of one input (q, k and v, gate and up) become one product without gradients,
        their weights being moved together. A model in training mode is left as it is. Changed weights are noticed as
        `repkernels.prepare` says. No bit changes.

    Then `generate`, `generate_batch` and `init_continuous_batching` give a prompt the same tokens and logits whatever
    shares its batch: padding on the left, chunks, pages, shared prefixes, preemption, CUDA graphs. Tokens are sampled
    by `repkernels.sampling`, from a seed of each prompt. A forward pass without padding is the same again, and in
    training mode gradients and the loss are this library's too.

    Enabling again, with other contracts too, replaces what was enabled. Not changed: `model.config` but for the name
    of the attention. Raises, with nothing changed: UnsupportedModel (a NotImplementedError) with all reasons;
    UnsupportedVersion (an ImportError) for another transformers; TypeError for what is no PreTrainedModel; ValueError
    for a contract that is unknown or that the model's dtype does not have, and for a pattern that matches nothing.
    """
    versions.check()
    if not isinstance(model, PreTrainedModel):
        hint = "; enable it before torch.compile" if hasattr(model, "_orig_mod") else ""
        raise TypeError(f"model: expected a transformers PreTrainedModel, got {type(model).__name__}{hint}")
    if prepare not in (True, False, "digits", "scales"):
        raise ValueError(f"prepare: expected True, False, 'digits' or 'scales', got {prepare!r}")
    named = {
        pattern: None if each is None else as_pair(each, f"contracts[{pattern!r}]")
        for pattern, each in (contracts or {}).items()
    }
    paths: dict[torch.nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    reasons: dict[str, list[str]] = {}
    classes: dict[torch.nn.Module, type] = {}
    if whole := _of_model(model):
        reasons[""] = whole
    for module, names in paths.items():
        try:
            found = _judge(module)
        except layers.NotCovered as reason:
            reasons.setdefault(names[0], []).append(str(reason))
        else:
            if found is not None:
                classes[module] = found
    if reasons:
        raise UnsupportedModel(type(model).__name__, reasons)
    dtype, device = next((p.dtype, p.device) for p in model.parameters() if p.is_floating_point())
    everywhere = as_pair(contract) if contract is not None else get_contract() or DEFAULTS[dtype]
    for pair in (everywhere, *named.values()):
        if pair is not None:
            resolve(pair, dtype, device.type)
    contracting = {m: names for m, names in paths.items() if issubclass(classes.get(m, type(m)), _CONTRACTING)}
    pairs = _chosen(contracting, everywhere, named)

    attention.register()
    if model.config._attn_implementation not in (attention.DENSE, attention.PAGED):
        model.__dict__[_ORIGINAL] = model.config._attn_implementation
    for module, cls in classes.items():
        if isinstance(module, SharedLinear):
            separate(module)
        module.__class__ = cls
    model.config._attn_implementation = attention.DENSE
    for module in paths:
        if hasattr(module, "layers") and hasattr(module, "norm"):
            residuals.link(module.layers, module.norm)
    keep: Keep | None = "digits" if prepare is True else prepare or None
    for module, pair in pairs.items():
        module.contract = pair or everywhere  # type: ignore[assignment]
        if isinstance(module, (Linear, layers.Experts)):
            module.prepare(None if model.training or _uncounted(module) else keep)
    if prepare and not model.training:
        for module in paths:
            for together in _SHARED.get(_mixin(module), ()):
                if all(hasattr(module, name) for name in together):
                    share([getattr(module, name) for name in together], keep)
    return model


# Projections of one input.
_SHARED: dict[type, tuple[tuple[str, ...], ...]] = {
    layers.Attention: (("q_proj", "k_proj", "v_proj"),),
    layers.GatedMLP: (("gate_proj", "up_proj"),),
}


def _mixin(module: torch.nn.Module) -> Any:
    return next((k for k in _SHARED if isinstance(module, k)), None)


def disable(model: Model) -> Model:
    """Makes a model that was enabled a stock one again, in place, and returns it; another one stays as it is."""
    implementation = model.__dict__.pop(_ORIGINAL, None)
    for module in model.modules():
        if isinstance(module, SharedLinear) and implementation is not None:
            separate(module)
        theirs = original(module) or _TORCHS.get(type(module))
        if implementation is not None and theirs is not None:
            module.__class__ = theirs
            for name in ("contract", "_kept", "_repkernels_frequencies", *residuals.LEFT):
                module.__dict__.pop(name, None)
    if implementation is not None:
        model.config._attn_implementation = implementation  # type: ignore[union-attr]
    return model


_TORCHS = {
    ours: theirs for theirs, ours in counterparts().items() if ours is not None and not issubclass(ours, Variant)
}


def _of_model(model: PreTrainedModel) -> list[str]:
    """What is wrong with the model as a whole."""
    found, config = [], model.config
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        found.append("its weights are quantised; load it in bf16, fp16 or fp32")
    dtypes = {p.dtype for p in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes)) or "none"
        found.append(f"its parameters have the types {names}; give it one of float32, bfloat16, float16 by model.to()")
    devices = {p.device for p in model.parameters()}
    if len(devices) > 1:
        found.append(f"it is on {len(devices)} devices; load it on one")
    if any(p.is_meta for p in model.parameters()):
        found.append("it has weights on the meta device; enable it once they are loaded")
    if any(type(p.data) is not Tensor for p in model.parameters()):
        found.append("it has weights that are no plain tensors, as for tensor parallelism")
    if getattr(config, "output_attentions", False):
        found.append("config.output_attentions: the weights are never made")
    if getattr(config, "use_bidirectional_attention", False):
        found.append("config.use_bidirectional_attention: queries see later keys")
    if getattr(config, "router_jitter_noise", 0):
        found.append("config.router_jitter_noise: noise of torch's generator; set it to 0")
    if getattr(config, "output_router_logits", False):
        found.append("config.output_router_logits: the loss of the routing is not covered; set it to False")
    if getattr(config, "attention_dropout", 0) and getattr(config, "attn_logit_softcapping", None):
        found.append("config.attention_dropout beside attn_logit_softcapping; set one of them to 0")
    return found


def _judge(module: torch.nn.Module) -> type | None:
    """The class that the module is to have, None to leave it. Raises NotCovered."""
    found = Linear if isinstance(module, SharedLinear) else type(module)
    cls = original(module) or _TORCHS.get(found, found)
    if "forward" in vars(module):
        raise layers.NotCovered(
            "it has a forward of its own on the instance, as accelerate's hooks and kernels put one"
        )
    if cls not in counterparts():
        raise layers.NotCovered(f"{cls.__name__} has arithmetic that is not covered")
    ours: Any = counterparts()[cls]
    if isinstance(module, torch.nn.Embedding) and (module.max_norm is not None or module.sparse):
        raise layers.NotCovered("max_norm and sparse are not supported")
    if ours is None or not issubclass(ours, Variant):
        kept: type | None = ours
        return kept
    if issubclass(ours, layers.Rotary):
        layers.check_rotary(module)
    made: type = variant(cls, ours)
    return made


def _uncounted(module: Any) -> bool:
    """Whether a weight was made under inference_mode: it counts no versions, so nothing can be kept of it."""
    return any(p.is_inference() for p in module.parameters(recurse=False))
