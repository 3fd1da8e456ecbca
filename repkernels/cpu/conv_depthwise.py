"""Depthwise convolutions and their input gradients: a line of chains at a time, tap after tap."""

import numpy as np
from numba import njit

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import fma


@njit
def progression(table, tap):
    """First, count and step of the positions that meet something by a tap, and the first and step of what they meet."""
    first, count, step, place, stride = 0, 0, 1, 0, 1
    for i in range(table.shape[0]):
        if table[i, tap] >= 0:
            if count == 0:
                first, place = i, table[i, tap]
            elif count == 1:
                step, stride = i - first, table[i, tap] - place
            count += 1
    return first, count, step, place, stride


@kernel
def depthwise_lines(
    start, stop, x, groups, channels, deep, high, wide, size, w, results, bias, out, strides, absent
):  # fmt: skip
    """Layers (sample, group * R + r, z) of out (N, G * R, D, H, W), flat with these strides, up to 4096 terms each.

    Operands as of `direct_pixels`.
    """
    state = keep_subnormals()
    across, lines, layers = wide.shape[0], high.shape[0], deep.shape[0]
    taps_wide = wide.shape[1]
    taps = deep.shape[1] * high.shape[1] * taps_wide
    places = size[0] * size[1] * size[2]
    zero = x.dtype.type(0)
    runs = np.empty((taps_wide, 5), np.int64)
    for kw in range(taps_wide):
        runs[kw, 0], runs[kw, 1], runs[kw, 2], runs[kw, 3], runs[kw, 4] = progression(wide, kw)
    chains = np.empty(across, x.dtype)
    for unit in range(start, stop):
        layer, rest = unit % layers, unit // layers
        column, sample = rest % (groups * results), rest // (groups * results)
        origin = (sample * groups + column // results) * channels * places
        for line in range(lines):
            for i in range(across):
                chains[i] = zero
            for c in range(channels):
                at = (column * channels + c) * taps
                for kd in range(deep.shape[1]):
                    for kh in range(high.shape[1]):
                        z, y = deep[layer, kd], high[line, kh]
                        for kw in range(taps_wide):
                            first, count, step, place, stride = runs[kw]
                            if z < 0 or y < 0:
                                count = 0
                            v = w[at]
                            at += 1
                            if not absent and not np.isfinite(v):  # +0 times it is NaN
                                last = first + count if count > 0 else 0
                                for i in range(first if count > 0 else 0):
                                    chains[i] = v - v
                                for i in range(last, across):
                                    chains[i] = v - v
                            if count == 0:
                                continue
                            source = origin + c * places + (z * size[1] + y) * size[2] + place
                            if step == 1 and stride == 1:
                                run, into = x[source : source + count], chains[first : first + count]
                                for i in range(count):
                                    into[i] = fma(run[i], v, into[i])
                            else:
                                for i in range(count):
                                    k = first + i * step
                                    chains[k] = fma(x[source + i * stride], v, chains[k])
            if bias.size > 0:
                for i in range(across):
                    chains[i] += bias[column]
            place = sample * strides[0] + column * strides[1] + layer * strides[2] + line * strides[3]
            if strides[4] == 1:
                run = out[place : place + across]
                for i in range(across):
                    run[i] = chains[i] + zero
            else:
                for i in range(across):
                    out[place + i * strides[4]] = chains[i] + zero
    restore(state)
