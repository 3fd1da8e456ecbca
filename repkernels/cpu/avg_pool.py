"""avg_pool on the CPU (SPEC.md, "Pooling"): window by window, and gradients handed out in the order of the results."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.memory import like, narrow_to, widened
from repkernels.cpu.sum import LANES, sum_in_place
from repkernels.cpu.windows import divisors, planes_of, walk
from repkernels.windows import Windows


def forward(x: Tensor, out: Tensor, w: Windows, divide_by: int, divisor: int) -> None:
    """x (N, C, D, H, W), any strides -> out (N, C, *output), without gaps.

    divisor: of every window, or 0: divide_by 0 counts the window's positions in the padded input, 1 those inside.
    """
    wide = like(out)
    walk(_forward, w, None, wide, widened(x), out.numel() * w.taps, divisors(w, divide_by), divisor)
    narrow_to(out, wide)


def backward(grad: Tensor, out: Tensor, w: Windows, divide_by: int, divisor: int) -> None:
    """grad (N, C, *output), any strides -> out (N, C, D, H, W), without gaps, the input's gradient."""
    wide = like(out).zero_()
    walk(_backward, w, None, wide, widened(grad), grad.numel() * w.taps, divisors(w, divide_by), divisor)
    narrow_to(out, wide)


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
def _forward(start, stop, table, sizes, out, out_strides, x, strides, counts, divisor):
    state = keep_subnormals()
    output, extent, windows = sizes[3:6], sizes[6:9], table[0]
    terms, by = np.empty(extent[0] * extent[1] * extent[2], out.dtype), np.empty(1, out.dtype)
    lanes = np.empty(LANES, out.dtype)
    for block in range(start, stop):
        n, low, high = planes_of(block, sizes)
        for d in range(output[0]):
            along_d = windows[d]
            for h in range(output[1]):
                along_h = windows[output[0] + h]
                for w in range(output[2]):
                    along_w = windows[output[0] + output[1] + w]
                    by[0] = divisor
                    if divisor == 0:
                        by[0] = counts[d] * counts[output[0] + h] * counts[output[0] + output[1] + w]
                    present = (along_d[2] - along_d[1]) * (along_h[2] - along_h[1]) * (along_w[2] - along_w[1])
                    for c in range(low, high):
                        if present < terms.size:
                            for j in range(terms.size):
                                terms[j] = -0.0
                        for a in range(along_d[1], along_d[2]):
                            at_d = n * strides[0] + c * strides[1] + (along_d[0] + a) * strides[2]
                            for b in range(along_h[1], along_h[2]):
                                at_h = at_d + (along_h[0] + b) * strides[3] + along_w[0] * strides[4]
                                place = (a * extent[1] + b) * extent[2]
                                for e in range(along_w[1], along_w[2]):
                                    terms[place + e] = x[at_h + e * strides[4]]
                        to = n * out_strides[0] + c * out_strides[1]
                        to += d * out_strides[2] + h * out_strides[3] + w * out_strides[4]
                        out[to] = _total(terms, lanes) / by[0]
    restore(state)


@kernel
def _backward(start, stop, table, sizes, out, strides, grad, grad_strides, counts, divisor):
    state = keep_subnormals()
    output, windows, by = sizes[3:6], table[0], np.empty(1, out.dtype)
    for block in range(start, stop):
        n, low, high = planes_of(block, sizes)
        for d in range(output[0]):
            along_d = windows[d]
            for h in range(output[1]):
                along_h = windows[output[0] + h]
                for w in range(output[2]):
                    along_w = windows[output[0] + output[1] + w]
                    by[0] = divisor
                    if divisor == 0:
                        by[0] = counts[d] * counts[output[0] + h] * counts[output[0] + output[1] + w]
                    for c in range(low, high):
                        of = n * grad_strides[0] + c * grad_strides[1]
                        of += d * grad_strides[2] + h * grad_strides[3] + w * grad_strides[4]
                        share = grad[of] / by[0]
                        for a in range(along_d[1], along_d[2]):
                            at_d = n * strides[0] + c * strides[1] + (along_d[0] + a) * strides[2]
                            for b in range(along_h[1], along_h[2]):
                                at_h = at_d + (along_h[0] + b) * strides[3] + along_w[0] * strides[4]
                                for e in range(along_w[1], along_w[2]):
                                    out[at_h + e * strides[4]] += share
    restore(state)
