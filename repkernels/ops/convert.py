"""A change of dtype from or to fp64 that keeps subnormals, whatever `torch.set_flush_denormal` says."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.operation import operation


def _run(x: Tensor, dtype: torch.dtype) -> Tensor:
    if not x.is_cpu:
        return x.to(dtype)
    return torch.empty_like(x, dtype=dtype).copy_(backend("wide", "cpu").converted(x, dtype))


def _fake(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
    ctx.dtype = inputs[0].dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _convert(grad, ctx.dtype), None


def _vmap(info: Any, in_dims: tuple[int, None], x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    return _convert(x, dtype), in_dims[0]


_convert = operation("convert", _run, _fake, _setup_context, _backward, _vmap)


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`: torch flushes nothing but between fp64 and the other floating dtypes."""
    if x.is_floating_point() and x.dtype != dtype and torch.float64 in (x.dtype, dtype):
        return _convert(x, dtype)
    return x.to(dtype)
