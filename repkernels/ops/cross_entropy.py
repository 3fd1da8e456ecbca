"""Softmax cross-entropy with class indices or probabilities (SPEC.md, "cross_entropy").

Per row: m = MAX; e_j = exp_f32(RN(x_j - m)); l = SUM(e_j); loss = RN(ln(l) - RN(x_y - m)).
Gradient: g_j = RN(RN(RN(e_j * div_rn(1, l)) - [j = y]) * scale), scale = the gradient of the row's loss.
Weights, label smoothing and probabilities are further single operations around these.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.quotient import quotient
from repkernels.ops.softmax import _gradient as softmax_gradient
from repkernels.ops.softmax import _softmax as softmax_rows
from repkernels.ops.sum import _repeat_rows, sum_rows

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def shares(smoothing: float, classes: int) -> tuple[float, float]:
    """(RN32(1 - smoothing), RN32(smoothing / classes)), from binary64."""
    return float(np.float32(1 - smoothing)), float(np.float32(smoothing / classes))


def _run(x: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, ignore_index: int) -> _Five:
    if target.ndim == 1:
        check_range(target, x.shape[1], ignore_index)
    keep, share = shares(smoothing, x.shape[1])
    whole = None
    if weight is not None and share:
        whole = backend("sum", x.device.type).sum_rows(weight.float()[:, None])
    return backend("cross_entropy", x.device.type).forward(x, target, weight, whole, keep, share, ignore_index)


def check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    """IndexError on the CPU, a device-side assertion on a GPU, unless targets are in [0, classes) or ignored."""
    inside = (target >= 0) & (target < classes) | (target == ignore_index)
    if target.device.type == "cpu":
        if not inside.all():
            wrong = target[~inside][0].item()
            raise IndexError(f"target: class {wrong} is out of range; expected 0 <= target < {classes} or ignore_index")
    else:
        torch._assert_async(inside.all(), "target: a class is out of range")


def _fake(x: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, ignore_index: int) -> _Five:
    loss, largest, log_sum, inverse = (x.new_empty((x.shape[0],), dtype=torch.float32) for _ in range(4))
    general = target.ndim == 2 or shares(smoothing, x.shape[1])[1] != 0
    return loss, largest, log_sum, inverse, x.new_empty((x.shape[0] if general else 0,), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Five) -> None:
    x, target, weight, ctx.smoothing, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, target, weight, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, target, weight, largest, log_sum, inverse, factor = ctx.saved_tensors
    by_x = by_target = None
    if ctx.needs_input_grad[0]:
        by_x = _gradient(x, target, weight, largest, inverse, factor, grad, ctx.smoothing, ctx.ignore_index)
    if ctx.needs_input_grad[1]:
        by_target = _target_gradient(x, target, weight, largest, log_sum, grad, ctx.smoothing)
    return by_x, by_target, None, None, None


def _run_gradient(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    largest: Tensor,
    inverse: Tensor,
    factor: Tensor,
    scale: Tensor,
    smoothing: float,
    ignore_index: int,
) -> Tensor:
    options = weight, *shares(smoothing, x.shape[1]), ignore_index
    kernels = backend("cross_entropy", x.device.type)
    return kernels.backward(x, target, largest, inverse, scale, factor, *options)


def _fake_gradient(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.smoothing, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors)


def _backward_gradient(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `_gradient` by x and scale, composed of differentiable operations in fp32."""
    x, target, weight, _, _, factor, scale = ctx.saved_tensors
    if target.ndim == 2 and ctx.needs_input_grad[1]:
        raise NotImplementedError("target: gradients of a gradient by probabilities are not supported; detach() them")
    u, classes = upstream.float(), x.shape[1]
    p = softmax_rows(x.float(), False)
    q, by_loss = _constants(target, weight, classes, ctx.smoothing, ctx.ignore_index)
    general = factor.numel() > 0
    row = by_loss * factor if general else by_loss
    difference = (p * _across(factor, classes) if general else p) - q
    by_scale = sum_rows((u * difference).t()) * by_loss
    by_x = softmax_gradient(u, p, False) * _across(scale * row, classes)
    if target.ndim == 1:
        ignored = target == ctx.ignore_index
        by_x, by_scale = by_x.masked_fill(ignored[:, None], 0), by_scale.masked_fill(ignored, 0)
    return by_x.to(x.dtype), None, None, None, None, None, by_scale, None, None


def _constants(
    target: Tensor, weight: Tensor | None, classes: int, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """q (N, C), what p is compared with, and (N,), what multiplies a row's scale."""
    keep, share = shares(smoothing, classes)
    w = None if weight is None else weight.float()
    if target.ndim == 2:
        q = target.float()
        q = q * keep + share if share else q
        return q if w is None else q * w, torch.ones_like(q[:, 0])
    y = target.masked_fill(target == ignore_index, 0)
    chosen = torch.ones_like(y, dtype=torch.float32) if w is None else w[y]
    is_chosen = torch.arange(classes, device=y.device) == y[:, None]
    if not share:
        return is_chosen.float(), chosen
    q = torch.full((classes,), share, dtype=torch.float32, device=y.device) if w is None else w * share
    return torch.where(is_chosen, (chosen * keep)[:, None] + q, q), torch.ones_like(chosen)


def _across(v: Tensor, classes: int) -> Tensor:
    """v (N,) repeated along rows (N, C)."""
    return _repeat_rows(v, classes).t()


def _run_target_gradient(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    largest: Tensor,
    log_sum: Tensor,
    scale: Tensor,
    smoothing: float,
) -> Tensor:
    keep = shares(smoothing, x.shape[1])[0]
    kernels = backend("cross_entropy", x.device.type)
    return kernels.target_gradient(x, target, largest, log_sum, scale, weight, keep)


def _fake_target_gradient(x: Tensor, target: Tensor, *_: Any) -> Tensor:
    return target.new_empty(target.shape)


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_second_gradient(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("target: gradients of a gradient of probabilities are not supported; detach() them")


def _as_rows(info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...], weight: int) -> list[Any]:
    """The arguments of a batch of calls as those of one call with all their rows."""
    if in_dims[weight] is not None:
        raise NotImplementedError("weight: vmap over class weights is not supported; give one weight to all")
    rows = list(args)
    for i, (value, dim) in enumerate(zip(args, in_dims, strict=True)):
        if isinstance(value, Tensor) and i != weight:
            batch = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            rows[i] = batch.reshape(batch.shape[0] * batch.shape[1], *batch.shape[2:])
    return rows


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[_Five, tuple[int, ...]]:
    loss, largest, log_sum, inverse, factor = (
        r.view(info.batch_size, -1) if r.numel() else r.view(info.batch_size, 0)
        for r in _forward(*_as_rows(info, in_dims, args, 2))
    )
    return (loss, largest, log_sum, inverse, factor), (0,) * 5


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    rows = _gradient(*_as_rows(info, in_dims, args, 2))
    return rows.view(info.batch_size, -1, rows.shape[-1]), 0


def _vmap_target_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    rows = _target_gradient(*_as_rows(info, in_dims, args, 2))
    return rows.view(info.batch_size, -1, rows.shape[-1]), 0


_forward = operation("cross_entropy", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "cross_entropy_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)
_target_gradient = operation(
    "cross_entropy_target_gradient",
    _run_target_gradient,
    _fake_target_gradient,
    _save_nothing,
    _no_second_gradient,
    _vmap_target_gradient,
)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Minus the logarithm of the softmax at the target class, torch.nn.functional.cross_entropy's signature.

    input: (C,), (N, C) or (N, C, d1, ...), fp32, bf16 or fp16. target: class indices, int64, of shape (), (N,) or
    (N, d1, ...), each in [0, C) or `ignore_index`, or probabilities of input's shape, fp32, bf16 or fp16. Rows whose
    target is `ignore_index` give the loss +0 and the gradient +0 and do not count for the mean; they are not read.
    weight: (C,), of the same dtypes. label_smoothing: in [0, 1].
    reduction: "none" (input's shape without its classes), "sum", or "mean": div_rn(SUM of the losses, n), n being
    RN32(number of rows), or with indices and weights SUM of the targets' weights; NaN if none.
    Result in input's dtype, rounded once; under autocast in fp32.

    Bits: SPEC.md, "cross_entropy"; rows are independent, SUM takes them in row-major order of target. The absolute
    error of a row's loss is at most (|x_y - m| + |loss| + 2 ln C + D + 4) * 2^-24 without options, m and D as in
    `softmax`.
    Differentiable by input any number of times (gradients of gradients are composed of single operations in fp32), by
    probabilities once, not by weight.
    Raises RuntimeError for shapes or devices that do not fit, ValueError for an unknown reduction, IndexError for a
    target out of range on the CPU (on a GPU the device-side assertion, as torch), NotImplementedError for a weight that
    requires a gradient, the deprecated size_average and reduce, and other dtypes.
    """
    _check(input, target, weight, size_average, reduce, reduction, label_smoothing)
    if checks.autocast(input.device.type) is not None:
        input = input.float()
    probabilities = target.is_floating_point()
    rows = _rows(input)
    flat = _rows(target) if probabilities else target.reshape(-1)
    weights = None if weight is None else weight.detach().contiguous()
    loss = _forward(rows, flat, weights, float(label_smoothing), ignore_index)[0]
    if reduction == "none":
        shape = target.shape if not probabilities else input.shape[:1] + input.shape[2:] if input.ndim > 1 else ()
        return loss.view(shape).to(input.dtype)
    total = sum_rows(loss[:, None])[0]
    if reduction == "mean":
        if probabilities:
            count = torch.full_like(total, float(rows.shape[0]))
        else:
            count = counted(flat, weights, ignore_index)
        total = quotient(total, count)
    return total.to(input.dtype)


def counted(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What the mean over target (N,) divides by: the number of rows that are not ignored, or the SUM of their weights.

    fp32, or fp64 for an fp64 weight.
    """
    ignored = target == ignore_index
    if weight is None:
        return (~ignored).sum().to(torch.float32)
    wide = weight if weight.dtype == torch.float64 else weight.float()
    return sum_rows(wide[target.masked_fill(ignored, 0)].masked_fill(ignored, 0)[:, None])[0]


def _rows(x: Tensor) -> Tensor:
    """x (C,), (N, C) or (N, C, d1, ...) as rows of classes."""
    x = x.movedim(1, -1) if x.ndim > 2 else x
    return x.reshape(-1, x.shape[-1])


def _check(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    size_average: bool | None,
    reduce: bool | None,
    reduction: str,
    label_smoothing: float,
) -> None:
    checks.operand("input", input, _DTYPES)
    if input.ndim == 0:
        raise RuntimeError("input: expected (C,), (N, C) or (N, C, ...), got a scalar")
    if (input.shape[0] if input.ndim == 1 else input.shape[1]) == 0:
        raise RuntimeError(f"input: no classes in shape {tuple(input.shape)}")
    check_reduction(size_average, reduce, reduction)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing: expected a number in [0, 1], got {label_smoothing}")
    check_weight(input, weight, _DTYPES)
    if isinstance(target, Tensor) and target.is_floating_point():
        checks.operand("target", target, _DTYPES)
        if target.device != input.device:
            raise RuntimeError(f"target: on {target.device} but input is on {input.device}; move one of them")
        if target.shape != input.shape:
            raise RuntimeError(
                f"target: expected probabilities of input's shape {tuple(input.shape)}, got {tuple(target.shape)}"
            )
    else:
        check_classes(input, target)


def check_reduction(size_average: bool | None, reduce: bool | None, reduction: str, *others: str) -> None:
    """Raises unless `reduction` is "none", "mean", "sum" or one of `others`, and the deprecated options are None."""
    if size_average is not None or reduce is not None:
        raise NotImplementedError("size_average and reduce: deprecated and not supported; use reduction=")
    if reduction not in (allowed := ("none", "mean", "sum", *others)):
        listed = ", ".join(map(repr, allowed[:-1])) + f" or {allowed[-1]!r}"
        raise ValueError(f"reduction: expected {listed}, got {reduction!r}")


def check_weight(input: Tensor, weight: Tensor | None, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raises unless `weight` is None or has one number for each class of `input` and asks for no gradient."""
    if weight is None:
        return
    checks.operand("weight", weight, dtypes)
    classes = input.shape[0] if input.ndim == 1 else input.shape[1]
    if weight.shape != (classes,):
        raise RuntimeError(f"weight: expected shape ({classes},), one for each class, got {tuple(weight.shape)}")
    if weight.device != input.device:
        raise RuntimeError(f"weight: on {weight.device} but input is on {input.device}; move one of them")
    if weight.requires_grad:
        raise NotImplementedError("weight: a gradient by class weights is not supported; detach() them")


def check_classes(input: Tensor, target: Tensor) -> None:
    """Raises unless `target` is a tensor of int64 of the shape and on the device that fit `input`."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a Tensor, got {type(target).__name__}")
    if target.dtype != torch.int64:
        raise RuntimeError(f"target: expected int64 class indices, got {target.dtype}; convert with .long()")
    if target.device != input.device:
        raise RuntimeError(f"target: on {target.device} but input is on {input.device}; move one of them")
    wanted = () if input.ndim == 1 else (input.shape[0], *input.shape[2:])
    if target.shape != wanted:
        raise RuntimeError(
            f"target: expected shape {tuple(wanted)} for input of shape {tuple(input.shape)}, got {tuple(target.shape)}"
        )
