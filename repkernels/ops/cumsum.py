"""Cumulative sums (SPEC.md, "cumsum"): a scan within blocks of 1024, the blocks' totals carried in ascending order."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.backend import backend
from repkernels.ops.convert import converted
from repkernels.ops.operation import operation


def _run(x: Tensor, dim: int, dtype: torch.dtype, reverse: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        views = reduce.four_axes([dim], x, out) or reduce.four_axes([dim], x.contiguous(), out)
        assert views is not None  # one axis of a contiguous tensor leaves at most two levels
        backend("cumsum", x.device.type).cumsum(*views, reverse)
    return out


def _fake(x: Tensor, dim: int, dtype: torch.dtype, reverse: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int, torch.dtype, bool], output: Tensor) -> None:
    x, ctx.dim, _, ctx.reverse = inputs
    ctx.dtype = x.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    grad = _cumsum(grad, ctx.dim, grad.dtype, not ctx.reverse)
    return grad.to(ctx.dtype), None, None, None


_cumsum: Callable[..., Any] = operation("cumsum", _run, _fake, _setup_context, _backward, reduce.moved(lambda: _cumsum))


def cumsum(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """y_i = x_0 + ... + x_i along `dim`, torch.cumsum's signature.

    input: fp32, bf16, fp16, fp64, any strides; result contiguous, in its dtype, each element rounded once. Integers
    and bool give int64, wrapping. dtype: input is converted first. Autocast: half types give fp32.
    Bits: SPEC.md, "cumsum". Differentiable, any number of times: the gradient is summed from the end.
    Accuracy: |error| <= 1.01 (10 + i / 1024) u S with S = sum of |x_0| .. |x_i| and u = 2^-24 (fp64: 2^-53); and one
    rounding of a half type.
    Raises IndexError for an axis out of range, NotImplementedError for other dtypes.
    """
    reduce.operand("input", input, integers=True)
    dim = reduce.axis(input.ndim, dim)
    dtype = reduce.single_precision(input, dtype)
    if (input.dtype if dtype is None else dtype) in reduce.INTEGERS:
        return torch.cumsum(input, dim, dtype=dtype)  # exact in any order
    if dtype is not None:
        checks.operand("dtype", input.new_empty((0,), dtype=dtype))
        if not (input.dtype in (torch.bfloat16, torch.float16) and dtype == torch.float32):
            input = converted(input, dtype)
    wanted = input.dtype if dtype is None else dtype
    return _cumsum(input[None], 0, wanted, False)[0] if input.ndim == 0 else _cumsum(input, dim, wanted, False)
