"""Distances and norms of vectors, from single operations in fp32 (SPEC.md, "Distances and their losses")."""

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.arithmetic import div
from repkernels.ops.norm import norm
from repkernels.ops.plain import add, multiply, subtract
from repkernels.ops.sum import broadcast_to, sum


def wide(**operands: object) -> tuple[list[Tensor], torch.dtype]:
    """The tensors in fp32 (fp64 if one is), broadcast to one shape, and the dtype that results are rounded to.

    That is torch's common one; under autocast fp32. Raises RuntimeError for shapes and devices that do not fit.
    """
    tensors: list[Tensor] = []
    for name, x in operands.items():
        checks.operand(name, x)
        assert isinstance(x, Tensor)
        if tensors and x.device != tensors[0].device:
            raise RuntimeError(f"{name}: on {x.device} but {next(iter(operands))} is on {tensors[0].device}; move one")
        tensors.append(x)
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    if dtype != torch.float64 and checks.autocast(checks.device_type(tensors[0])) is not None:
        dtype = torch.float32
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    except RuntimeError:
        given = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise RuntimeError(f"{', '.join(operands)}: shapes {given} do not broadcast") from None
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    return [broadcast_to(x.to(compute), shape) for x in tensors], dtype


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """norm((x1 - x2) + eps, p) along the last axis, torch.nn.functional.pairwise_distance's signature.

    x1, x2: fp32, bf16, fp16 or fp64, broadcast; result in their common type. Raises as `repkernels.norm`.
    """
    (a, b), dtype = wide(x1=x1, x2=x2)
    return norm(add(subtract(a, b), eps), p, -1, keepdim).to(dtype)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """SUM(a * b) along `dim`, a and b being x1 and x2 over their norms, not below eps; torch's signature."""
    (a, b), dtype = wide(x1=x1, x2=x2)
    a, b = (div(x, norm(x, 2, dim, True).clamp_min(eps)) for x in (a, b))
    return sum(multiply(a, b), dim).to(dtype)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """input / norm(input, p) along `dim`, the norm not below eps; torch.nn.functional.normalize's signature."""
    if out is not None:
        raise NotImplementedError("out: not supported; use the result")
    (x,), dtype = wide(input=input)
    return div(x, norm(x, p, dim, True).clamp_min(eps)).to(dtype)
