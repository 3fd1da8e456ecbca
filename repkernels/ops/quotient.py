"""A sum over a count: the last step of every mean, one correctly rounded division."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops.operation import operation
from repkernels.subnormals import subnormals_kept


def _run(total: Tensor, count: Tensor) -> Tensor:
    # By a tensor on the device, since torch multiplies by the reciprocal of a scalar.
    with subnormals_kept():
        return total / count


def _fake(total: Tensor, count: Tensor) -> Tensor:
    return torch.empty_like(total)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return quotient(grad, *ctx.saved_tensors), None


def _vmap(info: Any, in_dims: tuple[int | None, int | None], total: Tensor, count: Tensor) -> tuple[Tensor, int]:
    total, count = (
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((total, count), in_dims, strict=True)
    )
    return quotient(total, count), 0


_quotient = operation("quotient", _run, _fake, _setup_context, _backward, _vmap)


def quotient(total: Tensor, count: Tensor) -> Tensor:
    """RN(total / count) of two tensors of one shape, fp32 or fp64; no gradient goes to count."""
    return _quotient(total, count)
