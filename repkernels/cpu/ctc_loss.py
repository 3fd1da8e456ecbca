"""CTC loss on the CPU (SPEC.md, "ctc_loss"): the functions of kernels/ctc_loss.py, one sample at a time."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, exp_f32, ln_f32
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import narrow, widen


@njit
def _log_sum(a, b, c):
    m = b if b > a else a
    if c > m:
        m = c
    if m == -np.inf:
        m = F32(0)
    return m + ln_f32((exp_f32(a - m) + exp_f32(b - m)) + exp_f32(c - m))


@njit
def _label(targets, place, blank):
    return targets[place // 2] if place % 2 == 1 else blank


@kernel
def _walk(start, stop, x, targets, input_lengths, target_lengths, blank, out, loss):
    state = keep_subnormals()
    nothing = F32(-np.inf)
    samples = targets.shape[0]
    for unit in range(start, stop):
        n, back = unit % samples, unit // samples
        length, count = input_lengths[n], 2 * target_lengths[n] + 1
        y, walk = targets[n], out[back, n]
        ahead = 1 if back == 0 else -1
        for step in range(length):
            t = step if back == 0 else length - 1 - step
            for s in range(count):
                place = s if back == 0 else count - 1 - s
                label = _label(y, place, blank)
                p = x[t, n, label]
                if step == 0:
                    walk[t, place] = p if s < 2 else nothing
                    continue
                a = walk[t - ahead, place]
                b = walk[t - ahead, place - ahead] if s >= 1 else nothing
                c = nothing
                if s >= 2 and s % 2 == 1 and label != _label(y, place - 2 * ahead, blank):
                    c = walk[t - ahead, place - 2 * ahead]
                walk[t, place] = _log_sum(a, b, c) + p
        if loss.size and back == 0:
            if length == 0:
                loss[n] = F32(0) if count == 1 else F32(np.inf)
            else:
                b = walk[length - 1, count - 2] if count > 1 else nothing
                loss[n] = F32(0) - _log_sum(walk[length - 1, count - 1], b, nothing)
    restore(state)


def walk(
    x: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    out: Tensor,
    loss: Tensor | None,
) -> None:
    """out (directions, N, T, S) fp32: the walk from the start, and the one from the end if there are two; loss (N,).

    x (T, N, C), any strides. targets (N, L) int64, contiguous; lengths (N,) int64.
    """
    units = out.shape[0] * out.shape[1]
    losses = np.empty(0, np.float32) if loss is None else loss.numpy()
    numbers = widen(x), targets.numpy(), input_lengths.numpy(), target_lengths.numpy()
    spread(_walk, units, 64 * out.numel(), *numbers, blank, out.numpy(), losses)


@kernel
def _occupancy(start, stop, x, targets, input_lengths, target_lengths, blank, walks, loss, out, index):
    state = keep_subnormals()
    labels, steps = out.shape[1], out.shape[2]
    for row in range(start, stop):
        n, s = row // labels, row % labels
        inside = s < 2 * target_lengths[n] + 1
        label = _label(targets[n], s, blank) if inside else 0
        index[n, s] = n * x.shape[2] + label if inside else -1
        for t in range(steps):
            value = F32(0)
            if inside and t < input_lengths[n]:
                both = walks[0, n, t, s] + walks[1, n, t, s]
                v = (both - x[t, n, label]) + loss[n]
                value = F32(0) if both == -np.inf else exp_f32(F32(0) if v > 0 else v)
            out[n, s, t] = value
    restore(state)


def occupancy(
    x: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    walks: Tensor,
    loss: Tensor,
    out: Tensor,
    index: Tensor,
) -> None:
    """out (N, S, T) fp32: e^(both walks - x + loss); index (N, S) int64: n * C + the label, or -1."""
    rows = out.shape[0] * out.shape[1]
    numbers = widen(x), targets.numpy(), input_lengths.numpy(), target_lengths.numpy()
    results = walks.numpy(), loss.numpy(), out.numpy(), index.numpy()
    spread(_occupancy, rows, 8 * out.numel(), *numbers, blank, *results)


@kernel
def _gradient(start, stop, g, x, sums, loss, input_lengths, zero, out):
    state = keep_subnormals()
    for t in range(start, stop):
        for n in range(x.shape[1]):
            for c in range(x.shape[2]):
                p = x[t, n, c]
                v = (exp_f32(F32(0) if p > 0 else p) - sums[n * x.shape[2] + c, t]) * g[n]
                if loss[n] == np.inf:
                    v = F32(0) if zero else F32(np.nan)
                out[t, n, c] = v if t < input_lengths[n] else F32(0)
    restore(state)


def gradient(g: Tensor, x: Tensor, sums: Tensor, loss: Tensor, input_lengths: Tensor, zero: bool, out: Tensor) -> None:
    """out (T, N, C), contiguous: (e^x - sums) * g; sums (N * C, T), g and loss (N,) fp32."""
    result = np.empty(tuple(out.shape), np.float32)
    arrays = g.numpy(), widen(x), sums.numpy(), loss.numpy(), input_lengths.numpy(), zero, result
    spread(_gradient, out.shape[0], 8 * out.numel(), *arrays)
    out.copy_(narrow(result, out.dtype))
