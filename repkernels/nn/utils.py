"""torch.nn.utils' gradient clipping with defined bits (SPEC.md, "Clipping gradients")."""

import types
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from repkernels.ops import clip
from repkernels.ops.extrema import maximum, minimum
from repkernels.subnormals import subnormals_kept

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _listed(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, Tensor):
        return [parameters]
    found = list(parameters)
    if not found and isinstance(parameters, types.GeneratorType):
        warnings.warn("parameters: an empty generator; no gradient is clipped", stacklevel=3)
    return found


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


@torch._disable_dynamo
@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales all gradients, in place, so that their total norm is `max_norm` at most; returns the norm before.

    norm_type: 1, 2 or inf: the norm of the gradients' norms, by the SUM rule, in the order of the parameters.
    Gradients: fp32, bf16, fp16 or fp64, any strides. foreach: accepted, since there is one result whatever the loop.
    Nothing waits for the device, unless `error_if_nonfinite`, which raises RuntimeError for a norm that is no finite
    number, before any gradient changes. Raises NotImplementedError for other norms, dtypes and sparse gradients.
    """
    grads = _gradients(_listed(parameters))
    total = get_total_norm(grads, norm_type, error_if_nonfinite, foreach)
    if grads:
        clip.scale(grads, float(max_norm), total)
    return total


@torch._disable_dynamo
@torch.no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of the tensors' norms, as in `clip_grad_norm_`."""
    total = clip.total_norm(_listed(tensors), float(norm_type))
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"parameters: the gradients' norm of type {norm_type} is {total.item()}, by which they can't be clipped; "
            "pass error_if_nonfinite=False to scale them all the same"
        )
    return total


@torch._disable_dynamo
@torch.no_grad()
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales all gradients, in place, as `clip_grad_norm_` does for this total norm."""
    grads = _gradients(_listed(parameters))
    if grads:
        clip.scale(grads, float(max_norm), total_norm)


@torch._disable_dynamo
@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clips every element of the gradients, in place, to [-clip_value, clip_value]; NaN stays."""
    for g in _gradients(_listed(parameters)):
        with subnormals_kept():
            limit = torch.tensor(float(clip_value), dtype=torch.float64, device="cpu")
            if g.dtype != torch.float64:
                limit = limit.float().to(g.dtype)
        limit = limit.to(g.device)
        if g.is_cpu:  # torch's clamp flushes subnormals where its threads do
            g.copy_(minimum(maximum(g, -limit), limit))
        else:
            g.clamp_(min=-limit, max=limit)
