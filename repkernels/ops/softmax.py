"""Softmax along one axis, and its logarithm (SPEC.md, "softmax").

m = MAX; e_j = exp_f32(RN(x_j - m)); l = SUM(e). softmax: RN(e_j * div_rn(1, l)); log_softmax: RN(RN(x_j - m) - ln l).
Gradients are made of the stored result: y_j * (g_j - SUM(g * y)), and g_j - exp_f32(y_j) * SUM(g).
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.sum import _repeat_rows, sum_rows

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _run(x: Tensor, log: bool) -> Tensor:
    return backend("softmax", x.device.type).softmax(x, log)


def _fake(x: Tensor, log: bool) -> Tensor:
    return x.new_empty(x.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
    ctx.log = inputs[1]
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _gradient(grad, *ctx.saved_tensors, ctx.log), None


def _vmap(info: Any, in_dims: tuple[int, None], x: Tensor, log: bool) -> tuple[Tensor, int]:
    x = x.movedim(in_dims[0], 0)
    return _softmax(x.reshape(-1, x.shape[-1]), log).view(x.shape), 0


def _run_gradient(g: Tensor, y: Tensor, log: bool) -> Tensor:
    return backend("softmax", y.device.type).softmax_backward(g, y, log)


def _fake_gradient(g: Tensor, y: Tensor, log: bool) -> Tensor:
    return y.new_empty(y.shape)


def _setup_gradient(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    g, y, ctx.log = inputs
    ctx.save_for_backward(g, y)


def _backward_gradient(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
    """The gradients of `_gradient` by g and y, composed of differentiable operations in fp32."""
    g, y = ctx.saved_tensors
    wide, u = g.float(), upstream.float()
    if ctx.log:
        p = _softmax(y.float(), False)
        by_g = u - _row_sums(u * p)
        by_y = u * p * _row_sums(wide) * -1
    else:
        z = y.float()
        by_g = _gradient(u, z, False)
        by_y = u * (wide - _row_sums(wide * z)) - wide * _row_sums(u * z)
    return by_g.to(g.dtype), by_y.to(y.dtype), None


def _row_sums(x: Tensor) -> Tensor:
    """The SUM of each row of x (N, C), repeated along it."""
    return _repeat_rows(sum_rows(x.t()), x.shape[1]).t()


def _vmap_gradient(
    info: Any, in_dims: tuple[int | None, int | None, None], g: Tensor, y: Tensor, log: bool
) -> tuple[Tensor, int]:
    size = info.batch_size
    g, y = (
        x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((g, y), in_dims[:2], strict=True)
    )
    return _gradient(g.reshape(-1, g.shape[-1]), y.reshape(-1, y.shape[-1]), log).view(y.shape), 0


_softmax = operation("softmax", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "softmax_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """exp(x_j) over the sum of the exponentials along `dim`, torch.nn.functional.softmax's signature.

    input: any shape, fp32, bf16 or fp16 on the CPU or a GPU, any strides. dtype: what input is converted to first.
    dim=None is torch's implicit choice (0 for 0, 1 and 3 dimensions, otherwise 1), with a warning. Result: contiguous,
    input's dtype; under autocast fp32 unless dtype says otherwise. A slice whose maximum is not finite, or that has a
    NaN, is all NaN.

    Bits: SPEC.md, "softmax"; a slice depends on nothing but itself. The relative error of a result is at most
    (|x_j - m| + ln C + D + 6) * 2^-24, m the maximum, C the length of the axis, D the additions a term of its SUM goes
    through (log2 C up to 1024, C / 1024 + 10 up to 65536), before the rounding to a half type; where exp(x_j - m) is
    below 2^-126 the result is 0. Differentiable any number of times; gradients of gradients are composed of single
    operations in fp32.
    Raises NotImplementedError for other dtypes and devices, IndexError for a dim out of range.
    """
    return _along("softmax", input, dim, _stacklevel, dtype, False)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """The logarithm of the softmax along `dim`, torch.nn.functional.log_softmax's signature.

    Arguments, result and errors are those of `softmax`; -inf stays -inf beside finite elements. The absolute error is
    at most (|x_j - m| + |y_j| + 2 ln C + D + 4) * 2^-24.
    """
    return _along("log_softmax", input, dim, _stacklevel, dtype, True)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """softmax(-input), torch.nn.functional.softmin's signature."""
    checks.operand("input", input, tuple({*_DTYPES, input.dtype}) if dtype is not None else _DTYPES)
    return _along("softmin", -input, dim, _stacklevel, dtype, False)


def _along(name: str, input: Tensor, dim: int | None, stacklevel: int, dtype: torch.dtype | None, log: bool) -> Tensor:
    if dtype is not None and isinstance(input, Tensor):
        if dtype not in _DTYPES:
            raise NotImplementedError(f"dtype: {dtype} is not supported; use one of {', '.join(map(str, _DTYPES))}")
        input = input.to(dtype)
    checks.operand("input", input, _DTYPES)
    if dtype is None and checks.autocast(input.device.type) is not None:
        input = input.float()
    if dim is None:
        warnings.warn(
            f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X.",
            stacklevel=stacklevel,
        )
        dim = 0 if input.ndim in (0, 1, 3) else 1
    least = -max(input.ndim, 1)
    if not least <= dim < -least:
        raise IndexError(f"dim: {dim} is out of range for shape {tuple(input.shape)}; expected {least} to {-least - 1}")
    if input.ndim == 0:
        return _softmax(input.reshape(1, 1), log).reshape(())
    moved = input.movedim(dim, -1)
    if input.numel() == 0:
        return input.clone(memory_format=torch.contiguous_format)
    rows = _softmax(moved.reshape(-1, moved.shape[-1]), log)
    return rows.view(moved.shape).movedim(-1, dim).contiguous()
