"""Connectionist temporal classification (SPEC.md, "ctc_loss"): sums over all alignments, in logarithms.

Graves et al., "Connectionist Temporal Classification", ICML 2006. One walk through time from the start gives the loss,
a second one from the end the gradient: what the labels of one class share is a grouped sum.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.cross_entropy import check_reduction
from repkernels.ops.grouped_sum import groups
from repkernels.ops.operation import operation
from repkernels.ops.quotient import quotient
from repkernels.ops.sum import sum_rows

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _inputs(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int) -> tuple[Any, ...]:
    """(targets (N, L), input_lengths, target_lengths), int64 on x's device, after checks of what they hold."""
    steps, _, classes = x.shape
    _check_lengths("input_lengths", input_lengths, steps)
    longest = targets.shape[1] if targets.ndim == 2 else targets.numel()
    _check_lengths("target_lengths", target_lengths, longest)
    lengths = target_lengths.to(device=targets.device, dtype=torch.int64)
    targets = targets.long()
    if targets.ndim == 1:
        if target_lengths.device.type == "cpu" and int(target_lengths.sum()) != targets.numel():
            raise RuntimeError(
                f"targets: {targets.numel()} labels, but target_lengths add up to {int(target_lengths.sum())}"
            )
        width = int(target_lengths.max()) if target_lengths.numel() else 0
        starts = lengths.cumsum(0) - lengths
        places = starts[:, None] + torch.arange(width, device=targets.device)
        inside = torch.arange(width, device=targets.device) < lengths[:, None]
        padded = targets.new_zeros(places.shape)
        if targets.numel():
            padded = torch.where(inside, targets[places.clamp(max=targets.numel() - 1)], 0)
    else:
        inside = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
        padded = torch.where(inside, targets, 0)
    wrong = (padded < 0) | (padded >= classes)
    if targets.device.type != "cpu":
        torch._assert_async(~wrong.any(), f"targets: a label is outside [0, {classes})")
    elif wrong.any():
        raise RuntimeError(f"targets: label {padded[wrong][0].item()} is outside [0, {classes})")
    moved = (t.to(device=x.device, dtype=torch.int64).contiguous() for t in (padded, input_lengths, lengths))
    return tuple(moved)


def _check_lengths(name: str, lengths: Tensor, most: int) -> None:
    outside = (lengths < 0) | (lengths > most)
    if lengths.device.type != "cpu":
        torch._assert_async(~outside.any(), f"{name}: a length is outside 0 .. {most}")
    elif outside.any():
        raise RuntimeError(
            f"{name}: Expected {name} to have value at most {most} and at least 0, but got value "
            f"{lengths[outside][0].item()}"
        )


def _walks(x: Tensor, directions: int, targets: Tensor) -> Tensor:
    steps, samples, _ = x.shape
    shape = directions, samples, steps, 2 * targets.shape[1] + 1
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _run(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero: bool) -> Tensor:
    labels = _inputs(x, targets, input_lengths, target_lengths, blank)
    loss = torch.empty(x.shape[1], dtype=torch.float32, device=x.device)
    backend("ctc_loss", x.device.type).walk(x, *labels, blank, _walks(x, 1, labels[0]), loss)
    return torch.where(loss == float("inf"), 0.0, loss) if zero else loss


def _fake(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero: bool) -> Tensor:
    return x.new_empty(x.shape[1], dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.blank, ctx.zero = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _gradient(grad, *ctx.saved_tensors, ctx.blank, ctx.zero), *[None] * 5


def _run_gradient(
    g: Tensor, x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero: bool
) -> Tensor:
    labels = _inputs(x, targets, input_lengths, target_lengths, blank)
    kernels = backend("ctc_loss", x.device.type)
    steps, samples, classes = x.shape
    loss = torch.empty(samples, dtype=torch.float32, device=x.device)
    walks = _walks(x, 2, labels[0])
    kernels.walk(x, *labels, blank, walks, loss)
    occupied = torch.empty((samples, walks.shape[3], steps), dtype=torch.float32, device=x.device)
    index = torch.empty(occupied.shape[:2], dtype=torch.int64, device=x.device)
    kernels.occupancy(x, *labels, blank, walks, loss, occupied, index)
    order, starts = groups(index.view(-1), samples * classes)
    add = backend("grouped_sum", x.device.type).grouped_sum
    sums = add(occupied.view(-1, steps), order, starts, None, 1.0, False, torch.float32)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kernels.gradient(g.contiguous(), x, sums, loss, labels[1], zero, out)
    return out


def _fake_gradient(
    g: Tensor, x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero: bool
) -> Tensor:
    return x.new_empty(x.shape)


def _setup_nothing(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    pass


def _no_second(ctx: Any, grad: Tensor) -> Any:
    raise NotImplementedError("ctc_loss: gradients of its gradient are not supported, as in torch")


def _no_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    raise NotImplementedError("ctc_loss: vmap is not supported; samples are the second axis of log_probs")


_ctc_loss = operation("ctc_loss", _run, _fake, _setup_context, _backward, _no_vmap)
_gradient = operation("ctc_loss_gradient", _run_gradient, _fake_gradient, _setup_nothing, _no_second, _no_vmap)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the logarithm of the probability of all alignments of `targets`: torch.nn.functional.ctc_loss.

    log_probs: (T, N, C) or (T, C), logarithms of probabilities, fp32, bf16 or fp16, any strides. targets: (N, S), or
    all samples' labels one after another, integers in [0, C). input_lengths, target_lengths: (N,), tensors or
    sequences of integers. reduction: "none", "sum", or "mean": each loss divided by its target's length (at least 1),
    then the mean. zero_infinity: infinite losses and their gradients are 0. Result in log_probs' dtype, rounded once;
    under autocast in fp32.
    Bits: SPEC.md, "ctc_loss". Differentiable once by log_probs; the gradient is torch's, which after log_softmax is
    that of the loss: e^x less the share of each label.
    Raises ValueError for an unknown reduction, RuntimeError for shapes, lengths and labels that do not fit (on a GPU a
    device-side assertion where they lie there), NotImplementedError for fp64 and other dtypes.
    """
    checks.operand("log_probs", log_probs, HALF_AND_SINGLE)
    check_reduction(None, None, reduction)
    if log_probs.ndim not in (2, 3):
        raise RuntimeError(f"log_probs: expected (T, N, C) or (T, C), got shape {tuple(log_probs.shape)}")
    if not log_probs.numel():
        raise RuntimeError(f"log_probs: must not be empty, got shape {tuple(log_probs.shape)}")
    if checks.autocast(log_probs.device.type) is not None:
        log_probs = checks.cast(log_probs, torch.float32)
    single = log_probs.ndim == 2
    x = log_probs[:, None] if single else log_probs
    samples, classes = x.shape[1:]
    if not 0 <= blank < classes:
        raise RuntimeError(f"blank: must be in label range, 0 .. {classes - 1}, got {blank}")
    checks.operand("targets", targets, INTEGERS)
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[0] != samples):
        raise RuntimeError(f"targets: expected ({samples}, S) or 1 dimension, got shape {tuple(targets.shape)}")
    lengths = [
        _lengths(n, v, samples) for n, v in (("input_lengths", input_lengths), ("target_lengths", target_lengths))
    ]
    losses = _ctc_loss(x, targets, *lengths, blank, zero_infinity)
    if reduction == "none":
        return (losses[0] if single else losses).to(log_probs.dtype)
    if reduction == "mean":
        divisors = lengths[1].to(device=losses.device).clamp(min=1).to(losses.dtype)
        losses = quotient(losses, divisors)
    total = sum_rows(losses[:, None])[0]
    if reduction == "mean":
        total = quotient(total, torch.full_like(total, float(samples)))
    return total.to(log_probs.dtype)


def _lengths(name: str, lengths: Any, samples: int) -> Tensor:
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths, dtype=torch.int64) if len(lengths) else torch.zeros(0, dtype=torch.int64)
    if lengths.dtype not in INTEGERS:
        raise RuntimeError(f"{name}: must be integral, got {lengths.dtype}")
    lengths = lengths.reshape(-1).long()
    if lengths.numel() != samples:
        raise RuntimeError(f"{name}: must be of size batch_size, {samples}, got {lengths.numel()}")
    return lengths
