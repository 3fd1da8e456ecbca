"""`fixedNN`: the exact integer contraction of digits, on a CPU by products of int16 (SPEC.md, "Contractions").

With h = 256 d0 + d1, an int16, P / 256^max(0, S - 2) is a sum of products of a digit and an int16 (_PRODUCTS). Each is
at most 128 * 32640 in magnitude, so that an int32 holds the sum of 512 of them; int64 holds the whole up to
K = 2^33, 2^25, 2^17 for S = 2, 3, 4, and two words beyond.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.blocks import blocks, flat, is_small
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.matmul_ordered import ordered
from repkernels.cpu.multiply import INTEGER_GROUPS, ROWS, multiply_integers
from repkernels.cpu.pack import pack_digits
from repkernels.cpu.quantize import power, quantize
from repkernels.cpu.store import store
from repkernels.cpu.threads import buffer, share
from repkernels.digits import Digits

# k of one int32 sum, and of one packed piece.
STEP = 512
# Rows of A packed at a time.
SLAB = 96
# Largest block of the result of one task.
MOST = (512, 528)
LANES = 8
# Elements of B whose digits are made at a time where they are not kept.
STRETCH = 1 << 21
# The longest K whose sums int64 holds, for S = 1..4; multiples of STEP.
NARROW = (1 << 48, 1 << 33, 1 << 25, 1 << 17)

_H = 4
# For S = 1..4: a number of A, a number of B (digit 0..3 or h) and the binary logarithm of their product's weight.
_PRODUCTS = (
    ((0, 0, 0),),
    ((0, _H, 8), (1, _H, 0)),
    ((0, _H, 16), (1, _H, 8), (_H, 2, 0), (2, _H, 0)),
    ((0, _H, 24), (1, _H, 16), (_H, 2, 8), (2, _H, 8), (_H, 3, 0), (3, _H, 0), (2, 2, 0)),
)


class _Plan(NamedTuple):
    """The distinct numbers of A and of B, and the products as (index into the first, index into the second, weight)."""

    left: np.ndarray
    right: np.ndarray
    products: np.ndarray


def _plan(products: tuple[tuple[int, int, int], ...]) -> _Plan:
    left, right = (sorted({product[side] for product in products}) for side in (0, 1))
    steps = [(left.index(x), right.index(y), weight) for x, y, weight in products]
    return _Plan(*(np.array(part, np.int64) for part in (left, right, steps)))


_PLANS = tuple(_plan(products) for products in _PRODUCTS)


def fixed(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, digits: int, b_digits: Digits | None) -> None:
    """out (B, M, N) = a (B or 1, M, K) @ b (B or 1, K, N) + bias (N,), rounded to out's type."""
    left = quantize(a, digits)
    columns = b.transpose(1, 2)
    n, k = columns.shape[1:]
    kept = b_digits is not None and b_digits.planes.dim() == 4
    step = n if kept else max(INTEGER_GROUPS * LANES, STRETCH // max(1, k * len(b)))
    flags = []
    for start in range(0, n, step):
        part = slice(start, start + step)
        if b_digits is not None and kept:
            right = b_digits
        else:
            known = None if b_digits is None else b_digits.scale[:, part]
            right = quantize(columns[:, part], digits, known)
        flags.append(right.scale & 1)
        _product(left, right, k, None if bias is None else bias[part], out, start)
    touched = left.scale & 1, torch.cat(flags, 1)
    if any(bool(side.any()) for side in touched):
        ordered(a, b, bias, out, (touched[0].numpy(), touched[1].numpy()))


def _product(left: Digits, right: Digits, k: int, bias: Tensor | None, out: Tensor, first: int) -> None:
    """Stores columns `first`, ... of the result, one for each vector of `right`."""
    digits, _, _, length = left.planes.shape
    batch, m, width = out.shape
    n = right.planes.shape[2]
    plan, narrow = _PLANS[digits - 1], NARROW[digits - 1]
    a, b = left.planes.view(-1).numpy(), right.planes.view(-1).numpy()
    a_scales, b_scales = left.scale.view(-1).numpy(), right.scale.view(-1).numpy()
    result = flat(out)
    offset = result.array[:0] if bias is None else flat(bias.contiguous()).array
    panel = INTEGER_GROUPS * LANES
    work = blocks(batch, m, n, k * len(plan.products), MOST, (LANES, panel))

    def task(index: int) -> None:
        block = work[index]
        rows, columns = -(-block.rows // LANES) * LANES, -(-block.columns // panel) * panel
        a_row = (block.batch * m if left.planes.shape[1] > 1 else 0) + block.row
        b_row = (block.batch * n if right.planes.shape[1] > 1 else 0) + block.column
        size, extra = rows * columns, rows * columns if k > narrow else 0
        sums = buffer("sums", size, np.int64)[:size]
        high, low = buffer("high", extra, np.int64)[:extra], buffer("low", extra, np.uint64)[:extra]
        _sum(
            a,
            a_row * length,
            left.planes.stride(0),
            b,
            b_row * length,
            right.planes.stride(0),
            length,
            plan.left,
            plan.right,
            plan.products,
            narrow,
            block.rows,
            block.columns,
            buffer("rows", len(plan.left) * SLAB * STEP, np.int16),
            buffer("columns", len(plan.right) * columns * STEP, np.int16),
            sums,
            high,
            low,
        )
        _store(
            sums,
            high,
            low,
            columns,
            a_scales,
            a_row,
            b_scales,
            b_row,
            8 * max(0, digits - 2),
            offset,
            block.column,
            result.array,
            (block.batch * m + block.row) * width + first + block.column,
            width,
            block.rows,
            block.columns,
            buffer("line", block.columns, np.float32),
        )

    share(task, len(work), alone=is_small(batch, m, n, k))


@njit
def _drain(sums, high, low):
    """Moves the sums into integers of two words."""
    for i in range(len(sums)):
        before = low[i]
        low[i] = before + np.uint64(sums[i])
        high[i] += (sums[i] >> 63) + (low[i] < before)
        sums[i] = 0


@njit
def _rounded(high, low):
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


@njit
def _pack(x, at, plane, stride, count, depth, number, out, out_at):
    for group in range(0, count, LANES):
        place = at + group * stride + (0 if number == _H else number * plane)
        last = min(LANES, count - group) - 1
        pack_digits(x, place, plane, number == _H, stride, last, depth // 16, out, out_at + group * STEP)


@kernel
def _sum(
    a, a_at, a_plane, b, b_at, b_plane, length, left, right, products, narrow, m, n, rows, columns, sums, high, low
):  # fmt: skip
    """The integers of one block of the result; `rows` and `columns` are this thread's own memory."""
    panel, group = INTEGER_GROUPS * LANES, LANES * STEP
    width = (n + panel - 1) // panel * panel
    slot_a, slot_b = SLAB * STEP, width * STEP
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
def _store(
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
                line[j] = _rounded(high[i * width + j], low[i * width + j])
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
