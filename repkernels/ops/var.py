"""Variance and standard deviation (SPEC.md, "Reductions"): two passes, first the mean, then the squared deviations."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import reduce
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.reduce import Dim
from repkernels.ops.reduction_gradient import reduction_gradient
from repkernels.ops.sum import mean


def _run(x: Tensor, dims: list[int], correction: float, root: bool) -> tuple[Tensor, Tensor]:
    """(variance or deviation, mean); the mean is not rounded to a half type."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    terms, n, shape = reduce.columns(x, dims), reduce.count(x.shape, dims), reduce.kept_shape(x.shape, dims)
    reduced = backend("sum", x.device.type).reduce
    center = reduced(terms, "value", None, "mean", n, wide)
    finish = "mean root" if root else "mean"
    spread = reduced(terms, "deviation", center, finish, max(0.0, n - correction), x.dtype)
    return spread.view(shape), center.view(shape)


def _fake(x: Tensor, dims: list[int], correction: float, root: bool) -> tuple[Tensor, Tensor]:
    shape = reduce.kept_shape(x.shape, dims)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(shape), x.new_empty(shape, dtype=wide)


def _setup_context(ctx: Any, inputs: tuple[Tensor, list[int], float, bool], output: tuple[Tensor, Tensor]) -> None:
    x, ctx.dims, ctx.correction, ctx.root = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, *output)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    x, spread, center = ctx.saved_tensors
    formula, root = ("deviation", spread) if ctx.root else ("variance", None)
    return reduction_gradient(x, grad, center, root, ctx.dims, formula, ctx.correction), None, None, None


_spread: Callable[..., Any] = operation("var", _run, _fake, _setup_context, _backward, reduce.moved(lambda: _spread))


def var(
    input: Tensor,
    dim: Dim | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """div_rn(SUM(RN(d * d)), RN(max(0, n - correction))), d = RN(x - mean), torch.var's signature.

    input: fp32, bf16, fp16, fp64, any strides; result in its dtype, rounded once. dim: an int, ints, or all.
    correction: 1 by default; unbiased=False is 0. torch's form var(input, unbiased) works too.
    Bits: SPEC.md, "Reductions". Differentiable twice. Warns where no degree of freedom is left; then the result is
    NaN or an infinity, as the division gives it.
    Accuracy: relative error at most 1.01 ((D + 4) u + e^2 / v), D = d + 1 the bound of `repkernels.sum`, e the mean's
    absolute error and v the variance; and one rounding of a half type.
    Raises IndexError and RuntimeError for axes and RuntimeError for integers as torch; NotImplementedError for other
    dtypes.
    """
    return _both("var", input, dim, unbiased, keepdim, correction, False)


def std(
    input: Tensor,
    dim: Dim | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """sqrt_rn of the variance before it is rounded to a half type; otherwise as `repkernels.var`.

    Gradient: where the result is 0, 0.
    """
    return _both("std", input, dim, unbiased, keepdim, correction, True)


def var_mean(
    input: Tensor,
    dim: Dim | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(`repkernels.var`, `repkernels.mean`) of the same axes."""
    dim, unbiased = _shifted(dim, unbiased)
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)


def std_mean(
    input: Tensor,
    dim: Dim | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(`repkernels.std`, `repkernels.mean`) of the same axes."""
    dim, unbiased = _shifted(dim, unbiased)
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)


def _shifted(dim: Dim | bool, unbiased: bool | None) -> tuple[Dim, bool | None]:
    """torch takes var(input, unbiased) too."""
    return (None, dim) if isinstance(dim, bool) else (dim, unbiased)


def _both(
    name: str,
    x: Tensor,
    dim: Dim | bool,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
    root: bool,
) -> Tensor:
    reduce.operand("input", x, integers=True)
    if not x.is_floating_point():
        raise RuntimeError("std and var only support floating point and complex dtypes")
    dim, unbiased = _shifted(dim, unbiased)
    if unbiased is not None and correction is not None:
        raise TypeError(f"{name}(): unbiased={unbiased} and correction={correction} exclude each other; give one")
    if correction is None:
        correction = 0 if unbiased is False else 1
    dims = reduce.inside(reduce.axes(x.ndim, dim), x.ndim)
    if reduce.count(x.shape, dims) <= correction:
        warnings.warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor "
            "(input numel divided by output numel).",
            stacklevel=3,
        )
    y = _spread(x, dims, float(correction), root)[0]
    return reduce.with_axes(y, dims) if keepdim else y
