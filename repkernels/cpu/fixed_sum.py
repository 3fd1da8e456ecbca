"""The integers of `fixed`: sums over k of products of digits, each number int8 or int16 (fixed_products.py).

A product is at most 128 * 32640 in magnitude, so that an int32 holds the sum of STEP = 512 of them.
"""

import numpy as np
from numba import njit

from repkernels.cpu.compile import kernel
from repkernels.cpu.fixed_products import H
from repkernels.cpu.multiply import INTEGER_GROUPS, ROWS, dot, multiply_integers
from repkernels.cpu.pack import pack_digits

STEP = 512
# Rows of A packed at a time.
SLAB = 96
# k of the rows of A that stay in the first-level cache while B goes by once.
STRETCH = 4096
LANES = 8


@njit
def _pack(x, at, plane, stride, count, depth, number, out, out_at):
    for group in range(0, count, LANES):
        place = at + group * stride + (0 if number == H else number * plane)
        last = min(LANES, count - group) - 1
        pack_digits(x, place, plane, number == H, stride, last, depth // 16, out, out_at + group * STEP)


@kernel
def sum_block(
    a, a_at, a_plane, b, b_at, b_plane, length, left, right, products, narrow, m, n, rows, columns, sums, high, low, add
):  # fmt: skip
    """The integers of one block of the result, added to those there if `add`; they are whole numbers of one word, or,
    after each call, of the two words `high` and `low`. `rows` and `columns` are this thread's own memory.
    """
    panel, group = INTEGER_GROUPS * LANES, LANES * STEP
    width = (n + panel - 1) // panel * panel
    slot_a, slot_b = SLAB * STEP, width * STEP
    if not add:
        sums[:] = 0
        high[:] = 0
        low[:] = 0
    for start in range(0, length, STEP):
        if start > 0 and start % narrow == 0:
            _drain(sums, high, low)
        depth = min(STEP, length - start)
        for slab in range(0, m, SLAB):
            height = min(SLAB, m - slab)
            for slot in range(len(left)):
                at = a_at + slab * length + start
                _pack(a, at, a_plane, length, height, depth, left[slot], rows, slot * slot_a)
            for column in range(0, width, panel):
                if slab == 0:
                    for slot in range(len(right)):
                        at, place = b_at + column * length + start, slot * slot_b + column * STEP
                        _pack(b, at, b_plane, length, min(panel, n - column), depth, right[slot], columns, place)
                for step in range(len(products)):
                    from_a = products[step, 0] * slot_a
                    from_b = products[step, 1] * slot_b + column * STEP
                    weight = products[step, 2]
                    for row in range(0, height, ROWS):
                        place = from_a + row // LANES * group + row % LANES * 2
                        target = (slab + row) * width + column
                        multiply_integers(
                            rows, place, columns, from_b, group, depth // 2, sums, target, width, weight
                        )  # fmt: skip
    if len(high) > 0:
        _drain(sums, high, low)


@kernel
def sum_few_rows(
    a, a_at, a_plane, b, b_at, b_plane, length, left, right, products, narrow, m, n, rows, sums, high, low
):  # fmt: skip
    """As `sum_block`, for few rows of A: digits of B are read once, as they lie in memory."""
    width = len(sums) // m
    sums[:] = 0
    high[:] = 0
    low[:] = 0
    for start in range(0, length, STRETCH):
        if start > 0 and start % narrow == 0:
            _drain(sums, high, low)
        depth = min(STRETCH, length - start)
        for slot in range(len(left)):
            for i in range(m):
                _widen(a, a_at + i * length + start, a_plane, left[slot], depth, rows, (slot * m + i) * STRETCH)
        for j in range(n):
            for step in range(len(products)):
                first, power = products[step, 0] * m * STRETCH, products[step, 2]
                digit = b_at + j * length + start + right[products[step, 1]] * b_plane
                for i in range(m):
                    total = 0
                    for k in range(0, depth, STEP):
                        total += dot(rows, first + i * STRETCH + k, b, digit + k, min(STEP, depth - k) // 16)
                    sums[i * width + j] += total << power
    if len(high) > 0:
        _drain(sums, high, low)


@njit
def _widen(x, at, plane, number, depth, out, out_at):
    """A number (fixed_products.py) of `depth` elements as int16."""
    target = out[out_at : out_at + depth]
    first = x[at : at + depth] if number == H else x[at + number * plane : at + number * plane + depth]
    for k in range(depth):
        target[k] = first[k]
    if number == H:
        second = x[at + plane : at + plane + depth]
        for k in range(depth):
            target[k] = target[k] * 256 + second[k]


@njit
def _drain(sums, high, low):
    """Moves the sums into integers of two words."""
    for i in range(len(sums)):
        before = low[i]
        low[i] = before + np.uint64(sums[i])
        high[i] += (sums[i] >> 63) + (low[i] < before)
        sums[i] = 0
