"""avg_pool on the CPU (SPEC.md, "Pooling"): window by window, and gradients handed out in the order of the results."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.memory import like, narrow_to, widened
from repkernels.cpu.sum import LANES, sum_in_place
from repkernels.cpu.windows import planes_of, walk, window, windows_at
from repkernels.windows import Windows


def forward(x: Tensor, out: Tensor, w: Windows, divide_by: int, divisor: int) -> None:
    """x (N, C, D, H, W), any strides -> out (N, C, *output), without gaps.

    divisor: of every window, or 0: divide_by 0 counts the window's positions in the padded input, 1 those inside.
    """
    wide = like(out)
    walk(_forward, w, None, wide, widened(x), out.numel() * w.taps, (divide_by, divisor))
    narrow_to(out, wide)


def backward(grad: Tensor, out: Tensor, w: Windows, divide_by: int, divisor: int) -> None:
    """grad (N, C, *output), any strides -> out (N, C, D, H, W), without gaps, the input's gradient."""
    wide = like(out).zero_()
    walk(_backward, w, None, wide, widened(grad), grad.numel() * w.taps, (divide_by, divisor))
    narrow_to(out, wide)


@njit
def _divisor(d, h, w, geometry, starts, by):
    """How many positions a window is divided by."""
    if by[1] != 0:
        return by[1]
    count = 1
    for axis in range(3):
        first, end = window(axis, (d, h, w)[axis], 0, geometry, starts)
        size, padding = geometry[0][axis], geometry[3][axis]
        count *= min(end, size + padding) - first if by[0] == 0 else min(end, size) - max(first, 0)
    return count


@njit
def _total(terms, lanes):
    """The SUM of `terms`, whose values are lost."""
    n, half = terms.size, 1
    if n > LANES:
        return sum_in_place(terms, lanes)
    while 2 * half < n:
        half *= 2
    while n > 1:
        for i in range(n - half):
            terms[i] += terms[i + half]
        n, half = min(n, half), half // 2
    return terms[0]


@kernel
def _forward(start, stop, geometry, starts, counts, out, out_strides, x, strides, by):
    state = keep_subnormals()
    extent, output = geometry[1], geometry[5]
    terms = np.empty(extent[0] * extent[1] * extent[2], out.dtype)
    lanes, divisor = np.empty(LANES, out.dtype), np.empty(1, out.dtype)
    for block in range(start, stop):
        n, low, high = planes_of(block, counts)
        for d in range(output[0]):
            for h in range(output[1]):
                for w in range(output[2]):
                    along = windows_at(d, h, w, 0, geometry, starts)
                    (d_first, d_low, d_high), (h_first, h_low, h_high), (w_first, w_low, w_high) = along
                    present = (d_high - d_low) * (h_high - h_low) * (w_high - w_low)
                    divisor[0] = _divisor(d, h, w, geometry, starts, by)
                    for c in range(low, high):
                        if present < terms.size:
                            for j in range(terms.size):
                                terms[j] = -0.0
                        for a in range(d_low, d_high):
                            at_d = n * strides[0] + c * strides[1] + (d_first + a) * strides[2]
                            for b in range(h_low, h_high):
                                at_h = at_d + (h_first + b) * strides[3] + w_first * strides[4]
                                place = (a * extent[1] + b) * extent[2]
                                for e in range(w_low, w_high):
                                    terms[place + e] = x[at_h + e * strides[4]]
                        to = n * out_strides[0] + c * out_strides[1]
                        to += d * out_strides[2] + h * out_strides[3] + w * out_strides[4]
                        out[to] = _total(terms, lanes) / divisor[0]
    restore(state)


@kernel
def _backward(start, stop, geometry, starts, counts, out, strides, grad, grad_strides, by):
    state = keep_subnormals()
    output, divisor = geometry[5], np.empty(1, out.dtype)
    for block in range(start, stop):
        n, low, high = planes_of(block, counts)
        for d in range(output[0]):
            for h in range(output[1]):
                for w in range(output[2]):
                    along = windows_at(d, h, w, 0, geometry, starts)
                    (d_first, d_low, d_high), (h_first, h_low, h_high), (w_first, w_low, w_high) = along
                    divisor[0] = _divisor(d, h, w, geometry, starts, by)
                    for c in range(low, high):
                        of = n * grad_strides[0] + c * grad_strides[1]
                        of += d * grad_strides[2] + h * grad_strides[3] + w * grad_strides[4]
                        share = grad[of] / divisor[0]
                        for a in range(d_low, d_high):
                            at_d = n * strides[0] + c * strides[1] + (d_first + a) * strides[2]
                            for b in range(h_low, h_high):
                                at_h = at_d + (h_first + b) * strides[3] + w_first * strides[4]
                                for e in range(w_low, w_high):
                                    out[at_h + e * strides[4]] += share
    restore(state)
