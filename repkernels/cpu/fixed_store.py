"""The last steps of `fixed`: one rounding of the integer, its exponent, and what every product ends with (store.py)."""

import numpy as np
from numba import njit

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.quantize import power
from repkernels.cpu.store import store


@njit
def rounded(high, low):
    """RN32 of high * 2^64 + low, below 2^126 in magnitude."""
    negative = high < 0
    if negative:
        high = ~high + (low == 0)
        low = ~low + np.uint64(1)
    places = 0
    top = np.uint64(high)
    while top > 0:
        top >>= np.uint64(1)
        places += 1
    if places > 0 or low >> np.uint64(63) > 0:
        # The leading 63 bits, the last of which says whether anything follows, round as the whole number.
        places += 1
        rest = low & ((np.uint64(1) << np.uint64(places)) - np.uint64(1))
        low = (np.uint64(high) << np.uint64(64 - places)) | (low >> np.uint64(places)) | np.uint64(rest > 0)
    r = np.float32(np.int64(low)) * power(places)
    return -r if negative else r


@njit
def _scaled(r, exponent):
    """ldexp(r, exponent) in two steps."""
    near = min(max(exponent, -126), 127)
    return (r * power(near)) * power(min(max(exponent - near, -126), 127))


@kernel
def store_integers(
    sums, high, low, width, a_scales, a_row, b_scales, b_row, exponent, bias, bias_at,
    out, out_at, out_width, m, n, line,
):  # fmt: skip
    """Rounds the integers of one block, scales them, and stores the results."""
    state = keep_subnormals()
    line, offset = line[:n], bias[bias_at : bias_at + n]
    scales = b_scales[b_row : b_row + n]
    for i in range(m):
        if len(high) > 0:
            for j in range(n):
                line[j] = rounded(high[i * width + j], low[i * width + j])
        else:
            row = sums[i * width : i * width + n]
            for j in range(n):
                line[j] = np.float32(row[j])
        common = (a_scales[a_row + i] >> 1) + exponent
        for j in range(n):
            line[j] = _scaled(line[j], common + (scales[j] >> 1))
        start = out_at + i * out_width
        store(line, offset, out[start : start + n])
    restore(state)
