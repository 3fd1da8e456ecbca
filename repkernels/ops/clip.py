"""Norms of gradients, and gradients cut down to them (SPEC.md, "Clipping gradients"), in place."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.flat import in_memory_order, write_back
from repkernels.subnormals import subnormals_kept

_KINDS = {1.0: "1", 2.0: "2", math.inf: "inf"}


def total_norm(grads: Sequence[Tensor], norm_type: float) -> Tensor:
    """The norm of the norms of the gradients, in their order, a scalar tensor on the first one's device.

    norm_type: 1, 2 or inf. In fp32, or fp64 if all gradients are; 0 of no gradients. Raises NotImplementedError for
    other types and dtypes.
    """
    kind = _KINDS.get(float(norm_type))
    if kind is None:
        raise NotImplementedError(f"norm_type: {norm_type} is not supported; use 1, 2 or inf")
    if not grads:
        return torch.tensor(0.0)
    for g in grads:
        checks.operand("parameters: a gradient", g)
    wide = torch.float64 if all(g.dtype == torch.float64 for g in grads) else torch.float32
    if any(g.is_meta for g in grads):
        return torch.empty((), dtype=wide, device="meta")
    found: dict[int, Tensor] = {}
    for places in _alike(grads):
        some = [grads[i].resolve_neg().contiguous() for i in places]
        norms = backend("clip", some[0].device.type).norms(some, kind).to(grads[0].device)
        if len(some) < len(grads):
            with subnormals_kept():
                found.update(zip(places, norms.to(wide).unbind(), strict=True))
    if found:
        norms = torch.stack([found[i] for i in range(len(grads))])
    return backend("clip", norms.device.type).norms([norms], kind)[0]


def scale(grads: Sequence[Tensor], max_norm: float, total: Tensor) -> None:
    """Every gradient becomes RN(g * c), c = MIN(1, div_rn(RN32(max_norm), RN(total + RN32(1e-6))))."""
    if total.is_meta:
        return
    with subnormals_kept():
        limit, least, one = (torch.tensor(v, dtype=total.dtype, device="cpu") for v in (max_norm, 1e-6, 1.0))
        # By tensors, since torch may multiply by a scalar's reciprocal.
        c = limit.to(total.device) / (total + least.to(total.device))
        c = torch.where(c > 1, one.to(total.device), c)
    for places in _alike(grads):
        some = [grads[i] for i in places]
        groups, copies = in_memory_order([[g] for g in some])
        backend("clip", some[0].device.type).scale([g for (g,) in groups], c.to(some[0].device))
        write_back(copies, some)
    torch.autograd.graph.increment_version(list(grads))


def _alike(grads: Sequence[Tensor]) -> list[list[int]]:
    """The places of gradients of one dtype and device."""
    found: dict[Any, list[int]] = {}
    for i, g in enumerate(grads):
        found.setdefault((g.dtype, g.device), []).append(i)
    return list(found.values())
