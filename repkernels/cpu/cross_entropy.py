"""Softmax cross-entropy on the CPU (SPEC.md, "cross_entropy"): one row at a time."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, exp_f32, ln_f32, numbers, put, widened
from repkernels.cpu.rows import exponentials, row_maximum, row_sum, scratch, shift
from repkernels.cpu.spread import spread

Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_NOTHING = np.empty(0, np.float32)


def forward(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    whole: Tensor | None = None,
    keep: float = 1.0,
    share: float = 0.0,
    ignore_index: int = -100,
) -> Saved:
    """The loss of each row of x (N, C) and what its gradient needs: loss, max, log_sum, inv_sum, factor, fp32.

    x: fp32, bf16 or fp16, any strides. target: (N,) int64, or (N, C) probabilities. weight: (C,), whole: its SUM, (1,).
    keep, share: RN32(1 - label_smoothing), RN32(label_smoothing / C). factor is (N,) with probabilities or smoothing,
    otherwise (0,). The loss of a row whose target is not in [0, C) and not ignore_index is NaN.
    """
    x, rows = x.contiguous(), len(x)
    loss, largest, log_sum, inv_sum = (torch.empty(rows, dtype=torch.float32) for _ in range(4))
    factor = torch.empty(rows if share or target.ndim == 2 else 0, dtype=torch.float32)
    results = [r.numpy() for r in (loss, largest, log_sum, inv_sum, factor)]
    constants = _weights(weight), F32(x.shape[1] if whole is None else whole.item()), F32(keep), F32(share)
    if target.ndim == 2:
        spread(_forward_probabilities, rows, x.numel(), numbers(x), _wide(target), *constants, *results)
    else:
        spread(_forward, rows, x.numel(), numbers(x), target.contiguous().numpy(), *constants, ignore_index, *results)
    return loss, largest, log_sum, inv_sum, factor


def backward(
    x: Tensor,
    target: Tensor,
    largest: Tensor,
    inv_sum: Tensor,
    scale: Tensor,
    factor: Tensor | None = None,
    weight: Tensor | None = None,
    keep: float = 1.0,
    share: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """The gradient of x (N, C), contiguous, in x's dtype; scale (N,) fp32 is that of each row's loss."""
    x, grad = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    constants = _weights(weight), F32(keep), F32(share)
    per_row = _wide(largest), _wide(inv_sum), _wide(scale)
    factors = _NOTHING if factor is None else _wide(factor)
    if target.ndim == 2:
        arguments = numbers(x), _wide(target), *constants, *per_row, factors
        spread(_backward_probabilities, len(x), x.numel(), *arguments, numbers(grad))
    else:
        arguments = numbers(x), target.contiguous().numpy(), *constants, *per_row, factors
        spread(_backward, len(x), x.numel(), *arguments, ignore_index, numbers(grad))
    return grad


def target_gradient(
    x: Tensor,
    target: Tensor,
    largest: Tensor,
    log_sum: Tensor,
    scale: Tensor,
    weight: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """The gradient of the probabilities (N, C), contiguous, in their dtype."""
    x, grad = x.contiguous(), torch.empty(target.shape, dtype=target.dtype)
    per_row = _wide(largest), _wide(log_sum), _wide(scale)
    spread(_target_gradient, len(x), x.numel(), numbers(x), _weights(weight), F32(keep), *per_row, numbers(grad))
    return grad


def _weights(weight: Tensor | None) -> np.ndarray:
    return _NOTHING if weight is None else _wide(weight)


def _wide(x: Tensor) -> np.ndarray:
    return x.detach().float().contiguous().numpy()


@kernel
def _forward(
    start, stop, x, target, weight, whole, keep, share, ignore_index, loss, largest, log_sum, inv_sum, factor
):  # fmt: skip
    state = keep_subnormals()
    columns = x.shape[1]
    line, lanes, sums = scratch(columns)
    for i in range(start, stop):
        row, y = x[i], target[i]
        m = row_maximum(row)
        shift(row, m, line)
        linear = F32(0)
        if share != F32(0):
            if weight.size:
                for j in range(columns):
                    line[j] *= weight[j]
            linear = row_sum(line, lanes, sums)
            shift(row, m, line)
        exponentials(line, line)
        total = row_sum(line, lanes, sums)
        largest[i] = m
        log_sum[i] = ln_f32(total)
        inv_sum[i] = F32(1) / total
        if not 0 <= y < columns:
            loss[i] = F32(0) if y == ignore_index else F32(np.nan)
            if share != F32(0):
                factor[i] = F32(0)
            continue
        value = log_sum[i] - (widened(row[y]) - m)
        a = weight[y] if weight.size else F32(1)
        if share != F32(0):
            a = keep * a
            value = a * value + share * (whole * log_sum[i] - linear)
            factor[i] = a + share * whole
        elif weight.size:
            value = a * value
        loss[i] = F32(0) if y == ignore_index else value
    restore(state)


@njit
def _coefficients(probability, weight, keep, share, c):
    """c_j: the probabilities, smoothed and weighted."""
    for j in range(c.size):
        c[j] = probability[j]
    if share != F32(0):
        for j in range(c.size):
            c[j] = keep * c[j] + share
    if weight.size:
        for j in range(c.size):
            c[j] *= weight[j]


@kernel
def _forward_probabilities(
    start, stop, x, target, weight, whole, keep, share, loss, largest, log_sum, inv_sum, factor
):  # fmt: skip
    state = keep_subnormals()
    columns = x.shape[1]
    line, lanes, sums = scratch(columns)
    c = np.empty(columns, np.float32)
    for i in range(start, stop):
        m = row_maximum(x[i])
        _coefficients(target[i], weight, keep, share, c)
        factor[i] = row_sum(c, lanes, sums)
        shift(x[i], m, line)
        for j in range(columns):
            c[j] *= line[j]
        linear = row_sum(c, lanes, sums)
        exponentials(line, line)
        total = row_sum(line, lanes, sums)
        largest[i] = m
        log_sum[i] = ln_f32(total)
        inv_sum[i] = F32(1) / total
        loss[i] = factor[i] * log_sum[i] - linear
    restore(state)


@kernel
def _backward(
    start, stop, x, target, weight, keep, share, largest, inv_sum, scale, factor, ignore_index, grad
):  # fmt: skip
    state = keep_subnormals()
    columns = x.shape[1]
    for i in range(start, stop):
        row, out, y = x[i], grad[i], target[i]
        m, r, s = largest[i], inv_sum[i], scale[i]
        if y == ignore_index:
            for j in range(columns):
                put(out, j, F32(0))
        elif share == F32(0):
            if weight.size and 0 <= y < columns:
                s = s * weight[y]
            for j in range(columns):
                p = exp_f32(widened(row[j]) - m) * r
                put(out, j, (p - F32(j == y)) * s)
        else:
            a, k = keep, factor[i]
            if weight.size and 0 <= y < columns:
                a = keep * weight[y]
            for j in range(columns):
                q = share * weight[j] if weight.size else share
                if j == y:
                    q = a + q
                put(out, j, (exp_f32(widened(row[j]) - m) * r * k - q) * s)
    restore(state)


@kernel
def _backward_probabilities(
    start, stop, x, target, weight, keep, share, largest, inv_sum, scale, factor, grad
):  # fmt: skip
    state = keep_subnormals()
    c = np.empty(x.shape[1], np.float32)
    for i in range(start, stop):
        row, out = x[i], grad[i]
        m, r, s, k = largest[i], inv_sum[i], scale[i], factor[i]
        _coefficients(target[i], weight, keep, share, c)
        for j in range(row.size):
            put(out, j, (exp_f32(widened(row[j]) - m) * r * k - c[j]) * s)
    restore(state)


@kernel
def _target_gradient(start, stop, x, weight, keep, largest, log_sum, scale, grad):
    state = keep_subnormals()
    for i in range(start, stop):
        row, out = x[i], grad[i]
        for j in range(row.size):
            a = keep * weight[j] if weight.size else keep
            put(out, j, a * (log_sum[i] - (widened(row[j]) - largest[i])) * scale[i])
    restore(state)
