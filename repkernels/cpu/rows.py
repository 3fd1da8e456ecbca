"""What CPU kernels do with one row of fp32 numbers: its largest, its SUM (SPEC.md, "Sums"), its exponentials.

All of them rely on the caller's `keep_subnormals` (fpu.py).
"""

import numpy as np
from numba import njit

from repkernels.cpu.functions import I32, bitcast, exp_f32, widened
from repkernels.cpu.sum import BLOCK, LANES, _add, _take, halve, sum_in_place


@njit
def blocks_of(n):
    """How many numbers `row_sum` needs in `sums` for rows of n."""
    return max(1, -(-n // BLOCK))


@njit
def row_maximum(row):
    """The largest element of `row`, widened; -0 below +0, any number or NaN if the row has a NaN, -inf if empty."""
    # Integers in the order of the numbers, since LLVM vectorises no maximum of floats.
    key = I32(-0x7F800001)
    for j in range(row.size):
        bits = bitcast(widened(row[j]))
        key = max(key, I32(bits ^ ((bits >> 31) & 0x7FFFFFFF)))
    return bitcast(I32(key ^ ((key >> 31) & 0x7FFFFFFF)))


@njit
def row_sum(terms, lanes, sums):
    """The SUM of 1-D `terms`, which stay; scratch: `lanes` for LANES numbers and `sums` for `blocks_of` of them."""
    n = terms.size
    for block in range(sums.size):
        left, right = block * BLOCK, min((block + 1) * BLOCK, n)
        _take(lanes, terms[left : min(left + LANES, right)])
        for first in range(left + LANES, right, LANES):
            _add(lanes, terms[first : min(first + LANES, right)])
        sums[block] = halve(lanes, min(right - left, LANES))
    return sum_in_place(sums, lanes)


@njit
def shift(row, m, shifted):
    """shifted = row - m, widened."""
    for j in range(row.size):
        shifted[j] = widened(row[j]) - m


@njit
def exponentials(shifted, e):
    """e = exp_f32(shifted); the arrays may be one."""
    for j in range(shifted.size):
        e[j] = exp_f32(shifted[j])


@njit
def scratch(columns):
    """(row, lanes, sums) for rows of `columns`."""
    return np.empty(columns, np.float32), np.empty(LANES, np.float32), np.empty(blocks_of(columns), np.float32)
