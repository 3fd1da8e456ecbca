"""Operands of convolutions laid out as the rows of a product, a few rows or positions at a time.

A table (positions of an axis, taps of an axis) holds the place that the two meet at, or -1 where they meet none: there
the rows have zeros.
"""

import numpy as np
from numba import njit

from repkernels.cpu.compile import kernel


@kernel
def gather_pixels(x, plane, steps, channels, order, first, count, deep, high, wide, size, rows, width):
    """rows[s, i, k] = the element of plane s that pixel first + i meets at k, for i < count; zeros up to `width`.

    x: planes `plane` apart; steps: the strides of sample, place and channel, and where the group begins. Pixels are
    (sample, z, y, x) flattened, and k = channel * order[0] + tap * order[1]. size: of the source. rows: flat.
    """
    of_sample, of_place, of_channel, base = steps
    by_channel, by_tap = order
    pixels = deep.shape[0] * high.shape[0] * wide.shape[0]
    taps = deep.shape[1] * high.shape[1] * wide.shape[1]
    planes = rows.size // (count * width)
    for i in range(count):
        sample, pixel = (first + i) // pixels, (first + i) % pixels
        column, line = pixel % wide.shape[0], pixel // wide.shape[0]
        line, layer = line % high.shape[0], line // high.shape[0]
        for s in range(planes):
            start = (s * count + i) * width
            for k in range(channels * taps, width):
                rows[start + k] = 0
            tap = 0
            for kd in range(deep.shape[1]):
                z = deep[layer, kd]
                for kh in range(high.shape[1]):
                    y = high[line, kh]
                    for kw in range(wide.shape[1]):
                        place = wide[column, kw]
                        target = start + tap * by_tap
                        source = s * plane + base + sample * of_sample
                        source += ((z * size[1] + y) * size[2] + place) * of_place
                        meets = z >= 0 and y >= 0 and place >= 0
                        if by_channel == 1 and of_channel == 1:
                            out = rows[target : target + channels]
                            if meets:
                                run = x[source : source + channels]
                                for c in range(channels):
                                    out[c] = run[c]
                            else:
                                for c in range(channels):
                                    out[c] = 0
                        elif meets:
                            for c in range(channels):
                                rows[target + c * by_channel] = x[source + c * of_channel]
                        else:
                            for c in range(channels):
                                rows[target + c * by_channel] = 0
                        tap += 1


@kernel
def gather_taps(x, plane, steps, first, count, start, stop, deep, high, wide, size, rows, width):
    """rows[s, j, k] = the element of plane s that row first + j meets at pixel start + k < stop; zeros up to `width`.

    As `gather_pixels`, with the roles exchanged: a row is (channel, tap) flattened. The tables are those of
    `positions`, in which what a tap meets lies a stride apart.
    """
    of_sample, of_place, of_channel, base = steps
    across = wide.shape[0]
    pixels = deep.shape[0] * high.shape[0] * across
    taps_high, taps_wide = high.shape[1], wide.shape[1]
    taps = deep.shape[1] * taps_high * taps_wide
    planes = rows.size // (count * width)
    lows, highs, step = np.zeros(taps_wide, np.int64), np.zeros(taps_wide, np.int64), 1
    for tap in range(taps_wide):
        lows[tap], highs[tap] = span(wide, tap)
        if highs[tap] - lows[tap] > 1:
            step = wide[lows[tap] + 1, tap] - wide[lows[tap], tap]
    for s in range(planes):
        for j in range(count):
            channel, tap = (first + j) // taps, (first + j) % taps
            kw, kh, kd = tap % taps_wide, tap // taps_wide % taps_high, tap // taps_wide // taps_high
            origin = s * plane + base + channel * of_channel
            target = (s * count + j) * width
            k = start
            while k < stop:
                sample, pixel = k // pixels, k % pixels
                column, line = pixel % across, pixel // across
                z, y = deep[line // high.shape[0], kd], high[line % high.shape[0], kh]
                count_here = min(across - column, stop - k)
                out = rows[target : target + count_here]
                low, upper = max(lows[kw] - column, 0), min(highs[kw] - column, count_here)
                if z < 0 or y < 0 or low >= upper:
                    for i in range(count_here):
                        out[i] = 0
                else:
                    for i in range(low):
                        out[i] = 0
                    source = origin + sample * of_sample
                    source += ((z * size[1] + y) * size[2] + wide[column + low, kw]) * of_place
                    if step * of_place == 1:
                        run, into = x[source : source + upper - low], out[low:upper]
                        for i in range(upper - low):
                            into[i] = run[i]
                    else:
                        for i in range(upper - low):
                            out[low + i] = x[source + i * step * of_place]
                    for i in range(upper, count_here):
                        out[i] = 0
                target += count_here
                k += count_here
            for i in range(target, (s * count + j + 1) * width):
                rows[i] = 0


@njit
def span(table, tap):
    """The first position that meets something by this tap, and the one after the last."""
    low, high = 0, 0
    for i in range(table.shape[0]):
        if table[i, tap] >= 0:
            if high == 0:
                low = i
            high = i + 1
    return low, high


def positions(size: int, kernel: int, stride: int, padding: int, dilation: int, output: int) -> np.ndarray:
    """The table (output, kernel) of one axis: where an output's taps lie in the input."""
    at = np.arange(output)[:, None] * stride + np.arange(kernel) * dilation - padding
    return np.where((at >= 0) & (at < size), at, -1)


def outputs(size: int, kernel: int, stride: int, padding: int, dilation: int, output: int) -> np.ndarray:
    """The table (size, kernel) of one axis: which output sees an input position by a tap."""
    at = np.arange(size)[:, None] + padding - np.arange(kernel) * dilation
    seen = (at % stride == 0) & (at >= 0) & (at < output * stride)
    return np.where(seen, at // stride, -1)
