"""Operands of convolutions laid out as the rows of a product, a few rows or positions at a time.

A table (positions of an axis, taps of an axis) holds the place that the two meet at, or -1 where they meet none: there
the rows have zeros.
"""

import numpy as np

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
                        if z < 0 or y < 0 or place < 0:
                            for c in range(channels):
                                rows[target + c * by_channel] = 0
                        else:
                            place += (z * size[1] + y) * size[2]
                            source = s * plane + base + sample * of_sample + place * of_place
                            for c in range(channels):
                                rows[target + c * by_channel] = x[source + c * of_channel]
                        tap += 1


@kernel
def gather_taps(x, plane, steps, first, count, start, stop, deep, high, wide, size, rows, width):
    """rows[s, j, k] = the element of plane s that row first + j meets at pixel start + k < stop; zeros up to `width`.

    As `gather_pixels`, with the roles exchanged: a row is (channel, tap) flattened.
    """
    of_sample, of_place, of_channel, base = steps
    across = wide.shape[0]
    pixels = deep.shape[0] * high.shape[0] * across
    taps_high, taps_wide = high.shape[1], wide.shape[1]
    taps = deep.shape[1] * taps_high * taps_wide
    planes = rows.size // (count * width)
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
                last = min(across, column + stop - k)
                if z < 0 or y < 0:
                    for i in range(column, last):
                        rows[target + i - column] = 0
                else:
                    source = origin + sample * of_sample + (z * size[1] + y) * size[2] * of_place
                    for i in range(column, last):
                        place = wide[i, kw]
                        rows[target + i - column] = x[source + place * of_place] if place >= 0 else x.dtype.type(0)
                target += last - column
                k += last - column
            for i in range(target, (s * count + j + 1) * width):
                rows[i] = 0


def positions(size: int, kernel: int, stride: int, padding: int, dilation: int, output: int) -> np.ndarray:
    """The table (output, kernel) of one axis: where an output's taps lie in the input."""
    at = np.arange(output)[:, None] * stride + np.arange(kernel) * dilation - padding
    return np.where((at >= 0) & (at < size), at, -1)


def outputs(size: int, kernel: int, stride: int, padding: int, dilation: int, output: int) -> np.ndarray:
    """The table (size, kernel) of one axis: which output sees an input position by a tap."""
    at = np.arange(size)[:, None] + padding - np.arange(kernel) * dilation
    seen = (at % stride == 0) & (at >= 0) & (at < output * stride)
    return np.where(seen, at // stride, -1)
