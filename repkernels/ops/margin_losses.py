"""Losses of margins and likelihoods, from single operations in fp32 (SPEC.md, "Distances and their losses").

Half operands are widened first and the result rounded once. Differentiable as far as the operations are.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.activations import logsigmoid, softplus
from repkernels.ops.arithmetic import div
from repkernels.ops.cross_entropy import check_reduction
from repkernels.ops.distances import pairwise_distance, wide
from repkernels.ops.grouped_sum import INDICES, check_range
from repkernels.ops.index_add import gather
from repkernels.ops.plain import add, multiply, subtract
from repkernels.ops.sum import mean, sum
from repkernels.ops.unary import exp, log, sqrt

Flag = bool | None


def _reduced(loss: Tensor, reduction: str, dtype: torch.dtype) -> Tensor:
    if reduction == "none":
        return loss.to(dtype)
    return (mean(loss) if reduction == "mean" else sum(loss)).to(dtype)


def _positive(x: Tensor) -> Tensor:
    return x.clamp_min(0)


def _minus_from(value: float, x: Tensor) -> Tensor:
    """value - x."""
    return add(-x, value)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """x where target is 1, MAX(0, margin - x) where it is -1, both added elsewhere; torch's signature."""
    check_reduction(size_average, reduce, reduction)
    (x, y), dtype = wide(input=input, target=_as_float(target, input))
    near = torch.where(y != -1, x, 0.0)
    return _reduced(add(torch.where(y != 1, _positive(_minus_from(margin, x)), 0.0), near), reduction, dtype)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """MAX(0, -target * (x1 - x2) + margin); torch's signature."""
    check_reduction(size_average, reduce, reduction)
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.size()}, input2: {input2.size()}, target: {target.size()} "
        )
    (a, b, y), dtype = wide(input1=input1, input2=input2, target=_as_float(target, input1))
    return _reduced(_positive(add(multiply(-y, subtract(a, b)), margin)), reduction, dtype)


def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """RN(ln(1 + e^(-target * x))); torch's signature."""
    check_reduction(size_average, reduce, reduction)
    (x, y), dtype = wide(input=input, target=_as_float(target, input))
    return _reduced(softplus(multiply(-y, x)), reduction, dtype)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """mean over the classes of -(y * logsigmoid(x) + (1 - y) * logsigmoid(-x)) * weight; torch's signature."""
    check_reduction(size_average, reduce, reduction)
    tensors = {"input": input, "target": _as_float(target, input)} | ({} if weight is None else {"weight": weight})
    (x, y, *w), dtype = wide(**tensors)
    loss = -add(multiply(y, logsigmoid(x)), multiply(_minus_from(1, y), logsigmoid(-x)))
    for each in w:
        loss = multiply(loss, each)
    return _reduced(mean(loss, -1), reduction, dtype)


def _rows(x: Tensor, input: Tensor) -> Tensor:
    """x, fewer than two dimensions being one row."""
    if x.ndim > 2 or x.shape[-1:] == (0,):
        raise RuntimeError(f"input: expected classes or (rows, classes), only rows empty, got {tuple(input.shape)}")
    return x if x.ndim == 2 else x.reshape(1, -1)


def _check_classes(target: Tensor, rows: Tensor) -> None:
    """Raises for a class out of range, where values can be looked at; elsewhere `gather` does."""
    hidden = target.is_meta or torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(target)
    if not hidden:
        check_range("target", target, rows.shape[1], RuntimeError)


def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: Flag = None, reduce: Flag = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """SUM over j other than the target t of MAX(0, (margin - x_t) + x_j)^p * weight_t, over the number of classes."""
    check_reduction(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    (x,), dtype = wide(input=input)
    rows = _rows(x, input)
    checks.operand("target", target, INDICES)
    if target.numel() != len(rows) or target.ndim > 1:
        raise RuntimeError(
            f"target: expected one class for each row of input {tuple(input.shape)}, got shape {tuple(target.shape)}"
        )
    t = target.reshape(-1)
    _check_classes(t, rows)
    of_target = gather(rows, 1, t.unsqueeze(1))
    each = _positive(add(_minus_from(margin, of_target), rows))
    if p == 2:
        each = multiply(each, each)
    if weight is not None:
        if weight.dim() != 1 or len(weight) != rows.shape[1]:
            raise RuntimeError(f"weight: expected shape {(rows.shape[1],)}, got {tuple(weight.shape)}")
        each = multiply(each, weight.to(each.dtype).index_select(0, t).unsqueeze(1))
    own = torch.arange(rows.shape[1], device=x.device) == t.unsqueeze(1)
    loss = mean(each.masked_fill(own, 0), 1)
    return _reduced(loss if x.ndim == 2 else loss[0], reduction, dtype)


def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """SUM over targets t, before the first -1, and other classes j of MAX(0, (1 - x_t) + x_j), over their number."""
    check_reduction(size_average, reduce, reduction)
    (x,), dtype = wide(input=input)
    rows = _rows(x, input)
    checks.operand("target", target, INDICES)
    if target.shape != x.shape:
        raise RuntimeError(f"target: expected input's shape {tuple(input.shape)}, got {tuple(target.shape)}")
    t = target.reshape(rows.shape).long()
    named = (t < 0).cumsum(1) == 0
    index = torch.where(named, t, 0)
    _check_classes(index, rows)
    is_target = torch.zeros_like(named).scatter(1, index, named) | (named & (index == 0)).any(1, True) & (
        torch.arange(t.shape[1], device=t.device) == 0
    )
    of_target = _minus_from(1, gather(rows, 1, index))
    each = _positive(add(of_target.unsqueeze(2), rows.unsqueeze(1)))
    counted = named.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = div(sum(torch.where(counted, each, 0.0), (1, 2)), float(rows.shape[1]))
    return _reduced(loss if x.ndim == 2 else loss[0], reduction, dtype)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """1 - c where target is 1, MAX(0, c - margin) where it is -1, c = SUM(x1 * x2) / sqrt(a * b); torch's signature.

    a = SUM(x1 * x1) + 1e-12, b likewise.
    """
    check_reduction(size_average, reduce, reduction)
    if target.ndim not in (0, 1) or input1.ndim != target.ndim + 1 or input2.ndim != target.ndim + 1:
        raise RuntimeError(
            f"target: {target.ndim}D does not fit inputs of shapes {tuple(input1.shape)} and {tuple(input2.shape)}"
        )
    (a, b), dtype = wide(input1=input1, input2=input2)
    squares = [add(sum(multiply(v, v), -1), 1e-12) for v in (a, b)]
    cosine = div(sum(multiply(a, b), -1), sqrt(multiply(*squares)))
    near = torch.where(target == 1, _minus_from(1, cosine), 0.0)
    return _reduced(torch.where(target == -1, _positive(add(cosine, -margin)), near), reduction, dtype)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """MAX(0, (margin + d(a, p)) - d(a, n)), d = pairwise_distance; with swap the smaller of d(a, n), d(p, n)."""
    check_reduction(size_average, reduce, reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    _check_dimensions(anchor, positive, negative)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return pairwise_distance(x, y, p, eps)

    return _triplet(anchor, positive, negative, distance, margin, swap, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """triplet_margin_loss of another distance, whose bits are its own business; torch's signature."""
    check_reduction(None, None, reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    _check_dimensions(anchor, positive, negative)
    return _triplet(anchor, positive, negative, distance_function or pairwise_distance, margin, swap, reduction)


def _check_dimensions(anchor: Tensor, positive: Tensor, negative: Tensor) -> None:
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )


def _triplet(
    anchor: Tensor, positive: Tensor, negative: Tensor, distance: Callable[[Tensor, Tensor], Tensor], margin: float,
    swap: bool, reduction: str,
) -> Tensor:  # fmt: skip
    (a, p, n), dtype = wide(anchor=anchor, positive=positive, negative=negative)
    near, far = distance(a, p), distance(a, n)
    if swap:
        far = torch.minimum(far, distance(p, n))
    return _reduced(_positive(subtract(add(near, margin), far)), reduction, dtype)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: Flag = None,
    eps: float = 1e-8, reduce: Flag = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """RN(e^x) - y * x, or x - y * RN(ln(x + eps)) without log_input; torch's signature.

    full: where y > 1, + ((y * RN(ln y) - y) + 0.5 * RN(ln(2 pi y))).
    """
    check_reduction(size_average, reduce, reduction)
    (x, y), dtype = wide(input=input, target=_as_float(target, input))
    loss = subtract(exp(x), multiply(y, x)) if log_input else subtract(x, multiply(y, log(add(x, eps))))
    if full:
        safe = torch.where(y > 1, y, 1.0)
        stirling = add(subtract(multiply(safe, log(safe)), safe), multiply(log(multiply(safe, 2 * math.pi)), 0.5))
        loss = torch.where(y > 1, add(loss, stirling), loss)
    return _reduced(loss, reduction, dtype)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """0.5 * (RN(ln v) + ((x - y) * (x - y)) / v), v = MAX(var, eps), + 0.5 * ln(2 pi) if full; torch's signature.

    The gradient of var is that of v, also where eps is larger, as in torch.
    """
    check_reduction(None, None, reduction)
    if isinstance(var, float):
        var = torch.full_like(input, var)
    elif not isinstance(var, Tensor):
        raise TypeError(f"var: expected a Tensor or a float, got {type(var).__name__}")
    if (var < 0).any():
        raise ValueError("var has negative entry/entries")
    if var.size() != input.size():
        if input.size()[:-1] == var.size():
            var = var.unsqueeze(-1)
        elif input.ndim != var.ndim or [n for n, m in zip(var.shape, input.shape, strict=True) if n != m] != [1]:
            raise ValueError("var is of incorrect size")
    (x, y, v), dtype = wide(input=input, target=target, var=var)
    low = v.detach() < eps
    v = torch.where(low, (v - v.detach()) + eps, v)  # the difference is +0, and carries the gradient
    d = subtract(x, y)
    loss = multiply(add(log(v), div(multiply(d, d), v)), 0.5)
    if full:
        loss = add(loss, 0.5 * math.log(2 * math.pi))
    return _reduced(loss, reduction, dtype)


def _as_float(target: Tensor, input: Tensor) -> Tensor:
    """Integer targets, of signs or counts, in input's type."""
    checks.operand("target", target, (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool))
    return target if target.is_floating_point() else target.to(input.dtype)
