"""Negative log-likelihood (SPEC.md, "nll_loss"): minus the target's element, times its class's weight."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.cross_entropy import check_classes, check_range, check_reduction, check_weight, counted
from repkernels.ops.loss_formulas import loss
from repkernels.ops.operation import operation
from repkernels.ops.quotient import quotient
from repkernels.ops.sum import sum_rows


def _run(x: Tensor, target: Tensor, dim: int, ignore_index: int) -> Tensor:
    check_range(target, x.shape[dim], ignore_index)
    ignored = target == ignore_index
    picked = x.gather(dim, target.masked_fill(ignored, 0).unsqueeze(dim)).squeeze(dim)
    return picked.masked_fill_(ignored, 0).contiguous()


def _fake(x: Tensor, target: Tensor, dim: int, ignore_index: int) -> Tensor:
    return x.new_empty(target.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    x, target, ctx.dim, ctx.ignore_index = inputs
    ctx.classes = x.shape[ctx.dim]
    ctx.save_for_backward(target)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _place(grad, *ctx.saved_tensors, ctx.classes, ctx.dim, ctx.ignore_index), None, None, None


def _vmap(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, target: Tensor, dim: int, ignore_index: int
) -> tuple[Tensor, int]:
    x, target = _batched(info, in_dims, x, target)
    return _pick(x, target, dim + 1, ignore_index), 0


def _run_place(g: Tensor, target: Tensor, classes: int, dim: int, ignore_index: int) -> Tensor:
    ignored = target == ignore_index
    shape = (*target.shape[:dim], classes, *target.shape[dim:])
    at = target.masked_fill(ignored, 0).unsqueeze(dim)
    return g.new_zeros(shape).scatter_(dim, at, g.masked_fill(ignored, 0).unsqueeze(dim))


def _fake_place(g: Tensor, target: Tensor, classes: int, dim: int, ignore_index: int) -> Tensor:
    return g.new_empty((*target.shape[:dim], classes, *target.shape[dim:]))


def _setup_place(ctx: Any, inputs: tuple[Tensor, Tensor, int, int, int], output: Tensor) -> None:
    _, target, _, ctx.dim, ctx.ignore_index = inputs
    ctx.save_for_backward(target)


def _backward_place(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return _pick(grad, *ctx.saved_tensors, ctx.dim, ctx.ignore_index), None, None, None, None


def _vmap_place(
    info: Any, in_dims: tuple[Any, ...], g: Tensor, target: Tensor, classes: int, dim: int, ignore_index: int
) -> tuple[Tensor, int]:
    g, target = _batched(info, in_dims, g, target)
    return _place(g, target, classes, dim + 1, ignore_index), 0


def _batched(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor) -> list[Tensor]:
    return [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, in_dims, strict=False)
    ]


# Not torch's gather, whose gradient adds, on a GPU by atomic operations.
_pick = operation("pick_classes", _run, _fake, _setup_context, _backward, _vmap)
_place = operation("place_classes", _run_place, _fake_place, _setup_place, _backward_place, _vmap_place)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the target's element of input, times its class's weight, torch.nn.functional.nll_loss's signature.

    input: (C,), (N, C) or (N, C, d1, ...), fp32, bf16, fp16 or fp64, of log-probabilities. target: (), (N,) or
    (N, d1, ...), int64, each in [0, C) or `ignore_index`; such elements give the loss +0 and the gradient +0 and do not
    count for the mean. weight: (C,). reduction: "none" (shape of target), "sum", or "mean": div_rn(SUM of the losses,
    n), n the number of targets, or the SUM of their weights; NaN if none. Result in input's dtype, rounded once; under
    autocast in fp32. Differentiable by input any number of times.

    Bits: SPEC.md, "nll_loss"; SUM takes elements in row-major order of target.
    Raises RuntimeError for shapes or devices that do not fit, ValueError for an unknown reduction, IndexError for a
    target out of range on the CPU (on a GPU the device-side assertion), NotImplementedError for a weight that requires
    a gradient, the deprecated size_average and reduce, and other dtypes.
    """
    checks.operand("input", input)
    if input.ndim == 0:
        raise RuntimeError("input: expected (C,), (N, C) or (N, C, ...), got a scalar")
    check_reduction(size_average, reduce, reduction)
    check_weight(input, weight, checks.FLOATS)
    check_classes(input, target)
    if checks.autocast(input.device.type) is not None:
        input = checks.cast(input, torch.float32)
    picked = _pick(input, target, min(1, input.ndim - 1), ignore_index)
    picked = picked if input.dtype == torch.float64 else picked.float()
    ignored = target == ignore_index
    if weight is None:
        terms = picked.neg()
    else:
        weight = weight.detach().to(picked.dtype)
        chosen = weight[target.masked_fill(ignored, 0)]
        terms = loss(picked, chosen, None, None, "nll", 0.0)
    terms = terms.masked_fill(ignored, 0)
    if reduction == "none":
        return terms.to(input.dtype)
    total = sum_rows(terms.reshape(-1, 1))[0]
    if reduction == "mean":
        total = quotient(total, counted(target.reshape(-1), weight, ignore_index).to(total.dtype))
    return total.to(input.dtype)
