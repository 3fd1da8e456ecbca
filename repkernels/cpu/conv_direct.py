"""Convolutions output by output, each the chain of the specification: for those that non-finite elements take part in.

Where a chain is NaN it stays NaN, so it ends there.
"""

import numpy as np
from numba import njit

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import fma

CHUNK = 4096


@njit
def _sign(v, one):
    if np.isfinite(v):
        return one if v > 0 else -one if v < 0 else one - one
    return v


@kernel
def direct_pixels(
    start, stop, x, groups, channels, deep, high, wide, size, w, results, bias, out, strides, absent, signs, samples,
    columns,
):  # fmt: skip
    """Lines (sample, group, z, y) of outputs, one for each x: of samples (N, G) or columns (G * R) that are flagged.

    x: (N, G * channels, *size), w: (G, R, channels, taps), contiguous, in the computing format, as is the bias, which
    may be empty. absent: taps that meet no place take no part; otherwise they meet +0. signs: finite elements count
    as their signs, only results that are not finite are stored, and of flagged samples only outputs are made whose
    own elements are not all finite. strides: of out (N, G * R, D, H, W), which is flat.
    """
    state = keep_subnormals()
    across, lines, layers = wide.shape[0], high.shape[0], deep.shape[0]
    taps = deep.shape[1] * high.shape[1] * wide.shape[1]
    places = size[0] * size[1] * size[2]
    zero, one = x.dtype.type(0), x.dtype.type(1)
    where = np.empty(taps, np.int64)
    for unit in range(start, stop):
        line, rest = unit % lines, unit // lines
        layer, rest = rest % layers, rest // layers
        group, sample = rest % groups, rest // groups
        origin = (sample * groups + group) * channels * places
        for i in range(across):
            tap = 0
            for kd in range(deep.shape[1]):
                for kh in range(high.shape[1]):
                    for kw in range(wide.shape[1]):
                        a, b, c = deep[layer, kd], high[line, kh], wide[i, kw]
                        where[tap] = -1 if a < 0 or b < 0 or c < 0 else (a * size[1] + b) * size[2] + c
                        tap += 1
            touched = samples[sample, group] != 0
            if touched and signs:
                touched = False
                for c in range(channels):
                    for tap in range(taps):
                        if where[tap] >= 0 and not np.isfinite(x[origin + c * places + where[tap]]):
                            touched = True
            for r in range(results):
                column = group * results + r
                if not touched and columns[column] == 0:
                    continue
                at, total, t, k = column * channels * taps, zero, zero, 0
                for c in range(channels):
                    for tap in range(taps):
                        if where[tap] >= 0 or not absent:
                            v = x[origin + c * places + where[tap]] if where[tap] >= 0 else zero
                            u = w[at + k]
                            if signs:
                                v, u = _sign(v, one), _sign(u, one)
                            t = fma(v, u, t)
                        k += 1
                        if k % CHUNK == 0:
                            total = t if k == CHUNK else total + t
                            t = zero
                    if t != t:
                        break
                if k % CHUNK != 0 or t != t:
                    total = t if k < CHUNK else total + t
                if signs and np.isfinite(total):
                    continue
                if bias.size > 0:
                    total += bias[column]
                place = sample * strides[0] + column * strides[1] + layer * strides[2] + line * strides[3]
                out[place + i * strides[4]] = total + zero
    restore(state)


@kernel
def direct_taps(start, stop, g, x, outs, channels, deep, high, wide, size, out, strides, g_flags, x_flags):
    """Weight gradients (o, channel) of which g's or x's channel is flagged, by signs; stores what is not finite.

    g: (N, O, *outputs), x: (N, C, *size), contiguous, in the computing format; outs, channels: of a group; start and
    stop count (o, channel of its group). strides: of out (O, channels, kd, kh, kw), which is flat.
    """
    state = keep_subnormals()
    pixels, places = deep.shape[0] * high.shape[0] * wide.shape[0], size[0] * size[1] * size[2]
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for unit in range(start, stop):
        o, c = unit // channels, unit % channels
        from_x = o // outs * channels + c
        if g_flags[o] == 0 and x_flags[from_x] == 0:
            continue
        for kd in range(deep.shape[1]):
            for kh in range(high.shape[1]):
                for kw in range(wide.shape[1]):
                    t = zero
                    for sample in range(g.size // (pixels * g_flags.size)):
                        at = (sample * g_flags.size + o) * pixels
                        origin = (sample * x_flags.size + from_x) * places
                        for z in range(deep.shape[0]):
                            for y in range(high.shape[0]):
                                for i in range(wide.shape[0]):
                                    a, b, p = deep[z, kd], high[y, kh], wide[i, kw]
                                    v = zero
                                    if a >= 0 and b >= 0 and p >= 0:
                                        v = _sign(x[origin + (a * size[1] + b) * size[2] + p], one)
                                    t = fma(_sign(g[at], one), v, t)
                                    at += 1
                        if t != t:
                            break
                    if not np.isfinite(t):
                        place = o * strides[0] + c * strides[1] + kd * strides[2] + kh * strides[3]
                        out[place + kw * strides[4]] = t
    restore(state)
