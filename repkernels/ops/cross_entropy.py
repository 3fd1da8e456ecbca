"""Softmax cross-entropy with class indices (SPEC.md, "cross_entropy").

Per row: m = MAX; e_j = exp_f32(RN(x_j - m)); l = SUM(e_j); loss = RN(ln(l) - RN(x_y - m)).
Gradient: g_j = RN(RN(RN(e_j * div_rn(1, l)) - [j = y]) * scale), scale = the gradient of the row's loss.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum_rows
from repkernels.subnormals import subnormals_kept

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _run(x: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ignored = target == ignore_index
    _check_range(target, ignored, x.shape[1])
    loss, *saved = backend("cross_entropy", x.device.type).forward(x, target.masked_fill(ignored, 0))
    return loss.masked_fill_(ignored, 0), *saved


def _check_range(target: Tensor, ignored: Tensor, classes: int) -> None:
    inside = (target >= 0) & (target < classes) | ignored
    if target.device.type == "cpu":
        if not inside.all():
            wrong = target[~inside][0].item()
            raise IndexError(f"target: class {wrong} is out of range; expected 0 <= target < {classes} or ignore_index")
    else:
        torch._assert_async(inside.all(), "target: a class is out of range")


def _fake(x: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss, maximum, log_sum, inverse = (x.new_empty((x.shape[0],), dtype=torch.float32) for _ in range(4))
    return loss, maximum, log_sum, inverse


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: _Four) -> None:
    x, target, ctx.ignore_index = inputs
    _, maximum, _, inverse = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, target, maximum, inverse)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
    return _gradient(*ctx.saved_tensors, grad, ctx.ignore_index), None, None


def _run_gradient(
    x: Tensor, target: Tensor, maximum: Tensor, inverse: Tensor, scale: Tensor, ignore_index: int
) -> Tensor:
    ignored = target == ignore_index
    kernels = backend("cross_entropy", x.device.type)
    grad = kernels.backward(x, target.masked_fill(ignored, 0), maximum, inverse, scale.contiguous())
    return grad.masked_fill_(ignored[:, None], 0)


def _fake_gradient(
    x: Tensor, target: Tensor, maximum: Tensor, inverse: Tensor, scale: Tensor, ignore_index: int
) -> Tensor:
    return x.new_empty(x.shape)


def _run_mean(total: Tensor, count: Tensor) -> Tensor:
    # By a tensor on the device, since torch multiplies by the reciprocal of a scalar.
    with subnormals_kept():
        return total / count


def _fake_mean(total: Tensor, count: Tensor) -> Tensor:
    return torch.empty_like(total)


def _setup_mean(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward_mean(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _mean(grad, *ctx.saved_tensors), None


def _no_second_gradient(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("cross_entropy: gradients of its gradient are not supported")


def _no_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    raise NotImplementedError("cross_entropy: vmap is not supported; give it all rows at once")


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


_forward = operation("cross_entropy", _run, _fake, _setup_context, _backward, _no_vmap)
_gradient = operation(
    "cross_entropy_gradient", _run_gradient, _fake_gradient, _save_nothing, _no_second_gradient, _no_vmap
)
_mean = operation("cross_entropy_mean", _run_mean, _fake_mean, _setup_mean, _backward_mean, _no_vmap)


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

    input: (C,), (N, C) or (N, C, d1, ...), fp32, bf16 or fp16. target: (), (N,) or (N, d1, ...), int64, each in
    [0, C) or `ignore_index`; such rows give the loss +0 and the gradient +0 and do not count for the mean.
    reduction: "none" (shape of target), "sum", or "mean": div_rn(SUM of the losses, RN32(their number)), NaN if none.
    Result in input's dtype, rounded once; under autocast in fp32.

    Bits: SPEC.md, "cross_entropy"; rows are independent, SUM takes them in row-major order of target.
    Raises RuntimeError for shapes or devices that do not fit, ValueError for an unknown reduction, IndexError for a
    target out of range on the CPU (on a GPU the device-side assertion, as torch), NotImplementedError for class
    weights, label smoothing, class probabilities, the deprecated size_average and reduce, and other dtypes.
    """
    _check(input, target, weight, size_average, reduce, reduction, label_smoothing)
    if checks.autocast(input.device.type) is not None:
        input = input.float()
    rows = input.movedim(1, -1) if input.ndim > 2 else input
    flat = target.reshape(-1)
    loss = _forward(rows.reshape(-1, rows.shape[-1]), flat, ignore_index)[0]
    if reduction == "none":
        return loss.view(target.shape).to(input.dtype)
    total = sum_rows(loss[:, None])[0]
    if reduction == "mean":
        total = _mean(total, (flat != ignore_index).sum().to(torch.float32))
    return total.to(input.dtype)


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
    if weight is not None:
        raise NotImplementedError("weight: class weights are not supported yet; pass None")
    if size_average is not None or reduce is not None:
        raise NotImplementedError("size_average and reduce: deprecated and not supported; use reduction=")
    if label_smoothing != 0:
        raise NotImplementedError(f"label_smoothing: {label_smoothing} is not supported yet; pass 0")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction: expected 'none', 'mean' or 'sum', got {reduction!r}")
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a Tensor, got {type(target).__name__}")
    if target.is_floating_point():
        raise NotImplementedError("target: class probabilities are not supported yet; give int64 class indices")
    if target.dtype != torch.int64:
        raise RuntimeError(f"target: expected int64 class indices, got {target.dtype}; convert with .long()")
    if target.device != input.device:
        raise RuntimeError(f"target: on {target.device} but input is on {input.device}; move one of them")
    if input.ndim == 0:
        raise RuntimeError("input: expected (C,), (N, C) or (N, C, ...), got a scalar")
    wanted = () if input.ndim == 1 else (input.shape[0], *input.shape[2:])
    if target.shape != wanted:
        raise RuntimeError(
            f"target: expected shape {tuple(wanted)} for input of shape {tuple(input.shape)}, got {tuple(target.shape)}"
        )
    if (input.shape[0] if input.ndim == 1 else input.shape[1]) == 0:
        raise RuntimeError(f"input: no classes in shape {tuple(input.shape)}")
