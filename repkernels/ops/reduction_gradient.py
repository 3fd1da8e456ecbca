"""The gradients of reductions (SPEC.md, "Reductions"): elementwise formulas of x and of a few numbers per result.

Gradients of these gradients are torch's elementwise operations, in fp32 or fp64, with our sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import reduce
from repkernels.ops.backend import backend
from repkernels.ops.batches import first
from repkernels.ops.operation import operation
from repkernels.ops.sum import _sum
from repkernels.ops.unary import exp

_Two = tuple[Tensor | None, Tensor | None]


def _run(
    x: Tensor, g: Tensor, a: Tensor | None, b: Tensor | None, dims: list[int], formula: str, correction: float
) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    result = torch.empty_like(x)
    if not x.numel():
        return result
    views = reduce.four_axes(dims, x, result)
    out: Tensor = result
    if views is None:
        # A copy whose rows and columns are plain, and another of the result.
        terms = reduce.columns(x, dims).contiguous()
        out = torch.empty_like(terms)
        views = [terms, out]
    g = g.to(wide).contiguous().view(-1)
    a, b = (None if t is None else t.to(wide).contiguous().view(-1) for t in (a, b))
    if formula.endswith("tie"):
        b = backend("sum", x.device.type).reduce(views[0], formula, a, "sum", 1, wide)
    divisor = max(0.0, reduce.count(x.shape, dims) - correction)
    backend("reduction_gradient", x.device.type).gradient(views[0], views[1], g, a, b, formula, divisor)
    if out is not result:
        kept = [d for d in range(x.ndim) if d not in dims]
        order = [*dims, *kept]
        result.copy_(out.view([x.shape[d] for d in order]).permute(*(order.index(d) for d in range(x.ndim))))
    return result


def _fake(
    x: Tensor, g: Tensor, a: Tensor | None, b: Tensor | None, dims: list[int], formula: str, correction: float
) -> Tensor:
    return torch.empty_like(x)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.dims, ctx.formula, ctx.correction = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
    x, g, a, b = ctx.saved_tensors
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    v, wide_x = v.to(wide), x.to(wide)
    g_column, a_column, b_column = (None if t is None else reduce.with_axes(t.to(wide), ctx.dims) for t in (g, a, b))
    n = reduce.count(x.shape, ctx.dims)
    second = Second(v, wide_x, g_column, a_column, b_column, ctx.dims, max(0.0, n - ctx.correction))
    grad_x, grad_g = SECOND[ctx.formula](second)
    grad_x = None if grad_x is None else grad_x.to(x.dtype)
    return grad_x, grad_g.to(g.dtype), None, None, None, None, None


class Second:
    """The gradient v of a gradient, with what that was made of; g, a, b have the reduced axes, of size 1."""

    def __init__(self, v: Tensor, x: Tensor, g: Any, a: Any, b: Any, dims: list[int], divisor: float) -> None:
        self.v, self.x, self.g, self.a, self.b, self.dims, self.divisor = v, x, g, a, b, dims, divisor

    def sum(self, x: Tensor) -> Tensor:
        return _sum(x, self.dims, x.dtype)

    def column(self, x: Tensor) -> Tensor:
        return reduce.with_axes(self.sum(x), self.dims)

    def centred(self, x: Tensor) -> Tensor:
        return x - self.column(x) / reduce.count(self.x.shape, self.dims)


def _variance(s: Second) -> _Two:
    scale = 2 / s.divisor if s.divisor else torch.inf
    return s.centred(s.v) * (s.g * scale), s.sum(s.v * (s.x - s.a)) * scale


def _deviation(s: Second) -> _Two:
    d = s.x - s.a
    inverse = torch.where(s.b == 0, 0, 1 / (s.b * s.divisor))
    along = s.column(s.v * d)
    grad = (s.centred(s.v) - d * (along * torch.where(s.b == 0, 0, inverse / s.b))) * (s.g * inverse)
    return grad, s.sum(s.v * d * inverse)


def _root(s: Second) -> _Two:
    inverse = torch.where(s.b == 0, 0, 1 / s.b)
    along = s.column(s.v * s.x)
    return (s.v - s.x * (along * inverse * inverse)) * (s.g * inverse), s.sum(s.v * s.x * inverse)


def _sign(s: Second) -> _Two:
    return None, s.sum(s.v * s.x.sign())


def _tie(s: Second) -> _Two:
    tied = ((s.x == s.a) | (s.x.isnan() & s.a.isnan())).to(s.x.dtype)
    return None, s.sum(s.v * tied) / s.sum(tied)


def _magnitude_tie(s: Second) -> _Two:
    tied = ((s.x.abs() == s.a) | (s.x.isnan() & s.a.isnan())).to(s.x.dtype)
    return None, s.sum(s.v * s.x.sign() * tied) / s.sum(tied)


def _exponential(s: Second) -> _Two:
    p = exp(s.x - s.a)
    along = s.column(s.v * p)
    return (s.v - along) * p * s.g, s.sum(s.v * p)


SECOND: dict[str, Callable[[Second], Any]] = {
    "variance": _variance,
    "deviation": _deviation,
    "root": _root,
    "sign": _sign,
    "tie": _tie,
    "magnitude tie": _magnitude_tie,
    "exponential": _exponential,
}


def _vmap(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, g: Tensor, a: Any, b: Any, dims: list[int], *rest: Any
) -> tuple[Tensor, int]:
    tensors = [None if t is None else first(info, [d], t)[0] for t, d in zip((x, g, a, b), in_dims, strict=False)]
    return reduction_gradient(*tensors, [d + 1 for d in dims], *rest), 0


reduction_gradient = operation("reduction_gradient", _run, _fake, _setup_context, _backward, _vmap)
