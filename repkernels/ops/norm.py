"""Vector norms (SPEC.md, "Reductions")."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import reduce
from repkernels.ops.arithmetic import pow
from repkernels.ops.backend import backend
from repkernels.ops.convert import converted
from repkernels.ops.elementwise import elementwise
from repkernels.ops.operation import operation
from repkernels.ops.reduce import Dim
from repkernels.ops.reduction_gradient import reduction_gradient
from repkernels.ops.sum import _sum
from repkernels.ops.unary import log

# (term, finish) of the sums.
_SUMS = {0.0: ("nonzero", "sum"), 1.0: ("magnitude", "sum"), 2.0: ("square", "root")}
_GRADIENTS = {1.0: "sign", 2.0: "root", torch.inf: "magnitude tie", -torch.inf: "magnitude tie"}


def _run(x: Tensor, dims: list[int], p: float) -> Tensor:
    terms, shape = reduce.columns(x, dims), reduce.kept_shape(x.shape, dims)
    if p in _SUMS:
        term, finish = _SUMS[p]
        return backend("sum", x.device.type).reduce(terms, term, None, finish, 1, x.dtype).view(shape)
    if not x.numel():
        return x.new_empty(shape)
    return backend("extrema", x.device.type).extreme(terms, p > 0, True).view(shape)


def _fake(x: Tensor, dims: list[int], p: float) -> Tensor:
    return x.new_empty(reduce.kept_shape(x.shape, dims))


def _setup_context(ctx: Any, inputs: tuple[Tensor, list[int], float], output: Tensor) -> None:
    x, ctx.dims, ctx.p = inputs
    ctx.save_for_backward(x, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    x, result = ctx.saved_tensors
    if ctx.p == 0:
        return torch.zeros_like(x), None, None
    extreme, root = (None, result) if ctx.p == 2 else (result, None)
    return reduction_gradient(x, grad, extreme, root, ctx.dims, _GRADIENTS[ctx.p], 0.0), None, None


_norm: Callable[..., Any] = operation("norm", _run, _fake, _setup_context, _backward, reduce.moved(lambda: _norm))


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dim = None,
    keepdim: bool = False,
    out: None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The vector norm of order p over `dim` (an int, ints, or all), torch.norm's signature.

    input: fp32, bf16, fp16, fp64, any strides; result in its dtype, rounded once. dtype: input is converted first; it
    may not narrow. Autocast: half types give fp32.
    p: 2 or "fro": sqrt_rn(SUM(RN(x * x))), which overflows and underflows where the sum of the squares does; 1:
    SUM(|x|); 0: SUM of 1 for each x != 0; inf, -inf: the largest and smallest |x|; others, not of fp64: SUM(|x|^p) to
    the power 1 / p, by `repkernels.pow`.
    Bits: SPEC.md, "Reductions". Differentiable twice; where a norm of order 2 is 0, so is its gradient.
    Accuracy: p = 2, without over- and underflow: relative error at most 1.01 ((d + 2) / 2 + 1) u with d and u of
    `repkernels.sum`.
    Raises NotImplementedError for matrix norms and out; RuntimeError for integers, for a narrowing dtype and for an
    infinite or negative order of nothing; IndexError and RuntimeError for axes as torch.
    """
    reduce.operand("input", input, integers=True)
    if out is not None:
        raise NotImplementedError("out: not supported; use the result")
    order = _order(p)
    if not input.is_floating_point():
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {input.dtype}"
        )
    dtype = reduce.single_precision(input, dtype)
    if dtype is not None:
        if torch.promote_types(input.dtype, dtype) != dtype or not dtype.is_floating_point:
            raise RuntimeError(
                f"linalg.vector_norm: the dtype of the input ({input.dtype}) should be convertible without narrowing "
                f"to the specified dtype ({dtype})"
            )
        input = converted(input, dtype)
    dims = reduce.inside(reduce.axes(input.ndim, dim), input.ndim)
    if not (order in _SUMS or order > 0 and order < torch.inf) and not reduce.count(input.shape, dims):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {order:g} norm on an empty "
            f"{'tensor' if dim is None else 'dimension'} because the operation does not have an identity"
        )
    y = _norm(input, dims, order) if order in _SUMS or order in _GRADIENTS else _by_powers(input, dims, order)
    return reduce.with_axes(y, dims) if keepdim else y


def _order(p: float | str | None) -> float:
    if p is None or p == "fro":
        return 2.0
    if isinstance(p, str):
        raise NotImplementedError(f"p: {p!r} is a matrix norm, which is not supported; give a number or 'fro'")
    return float(p)


def _by_powers(x: Tensor, dims: list[int], p: float) -> Tensor:
    """Any other order; gradients come from the operations it is made of, and are +0 where x or the norm is 0."""
    if x.dtype == torch.float64:
        raise NotImplementedError(f"p: order {p} is not supported for fp64; use 0, 1, 2, inf or -inf, or fp32")
    least = 0.0 if p > 0 else torch.inf
    total = _sum(_power(x.float(), p, least), dims, torch.float32)
    return _power(total, 1 / p, least).to(x.dtype)


def _power(v: Tensor, p: float, of_zero: float) -> Tensor:
    """abs(v) ** p, by operations that keep subnormals: where they are flushed, `v == 0` and `v.abs()` don't."""
    zero = log(v.detach().abs()) == -torch.inf
    size = elementwise("leaky_relu", v.masked_fill(zero, 1), s=-1.0)
    return pow(size, p).masked_fill(zero, of_zero)
