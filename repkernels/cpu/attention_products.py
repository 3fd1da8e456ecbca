"""The two contractions of attention on a CPU: rows with rows, and weights with rows (SPEC.md, "Attention")."""

from typing import NamedTuple

import numpy as np
from numba import njit

from repkernels.cpu.attention_operands import (
    NARROW,
    SEGMENT,
    WIDE,
    exponent,
    nearest,
    padded,
    planes,
    power_of_two,
    put_row,
)
from repkernels.cpu.functions import F32, F64, I64, bitcast, fma
from repkernels.cpu.multiply import GROUPS, ROWS, multiply_chain

# Terms of one chain of `ordered`, and of one exact sum of `fixed`; S = 4 has shorter ones.
CHUNK, SHORT = 4096, 128


class Sums(NamedTuple):
    """Results of the inner loops, row-major: the same memory for every product of a task."""

    narrow: np.ndarray
    wide: np.ndarray
    totals: np.ndarray
    whole: np.ndarray


class Weights(NamedTuple):
    """Packed weights of SEGMENT elements a row."""

    narrow: np.ndarray
    wide: np.ndarray
    power: np.ndarray
    line: np.ndarray


@njit
def sums_of(rows, width, digits):
    """Memory for results of `rows` by up to `width`."""
    size = padded(rows) * padded(width)
    return Sums(
        np.zeros(size if digits == 0 else 0, np.float32),
        np.zeros(size if digits > 0 else 0, np.float64),
        np.zeros(size, np.float32),
        np.zeros(size if digits > 0 else 0, np.int64),
    )


@njit
def weights_of(rows, digits):
    size = padded(rows) * SEGMENT
    return Weights(
        np.zeros(size if digits == 0 else 0, np.float32),
        np.zeros(planes(digits) * size if digits > 0 else 0, np.float64),
        np.zeros(padded(rows), np.float64),
        np.zeros(SEGMENT, np.float64),
    )


@njit
def _multiply(a, a_at, b, b_at, lane, depth, start, count, m, width, c):
    """c (m, width) += the products over k from `start` on; groups of `lane` rows of `depth` units."""
    group = depth * lane
    for column in range(0, width, GROUPS * lane):
        right = b_at + column * depth + start * lane
        for row in range(0, m, ROWS):
            left = a_at + row // lane * group + row % lane + start * lane
            multiply_chain(a, left, b, right, group, count, c, row * width + column, width)


@njit
def _clear(c):
    for i in range(c.size):
        c[i] = 0


@njit
def _exact(a, b, sums, m, n, depth, digits):
    """sums.totals (m, padded n) = RN32 of the integers P / 256^max(0, S - 2)."""
    width = padded(n)
    size = (m + ROWS - 1) // ROWS * ROWS * width
    c, totals, whole = sums.wide[:size], sums.totals[:size], sums.whole[:size]
    a_plane, b_plane = a.size // planes(digits), b.size // planes(digits)
    step = CHUNK if digits < 4 else SHORT
    for start in range(0, depth, step):
        _clear(c)
        for plane in range(planes(digits)):
            count = min(step, depth - start)
            _multiply(a, plane * a_plane, b, plane * b_plane, WIDE, depth, start, count, m, width, c)
        if depth > step:
            for i in range(size):
                whole[i] = (whole[i] if start > 0 else 0) + I64(c[i])
    if depth > step:
        for i in range(size):
            totals[i] = F32(whole[i])
    else:
        for i in range(size):
            totals[i] = F32(c[i])


@njit
def _chains(a, b, sums, m, n, depth):
    """sums.totals (m, padded n) = chains of fused multiply-adds."""
    width = padded(n)
    size = (m + ROWS - 1) // ROWS * ROWS * width
    c, totals = sums.narrow[:size], sums.totals[:size]
    _clear(totals)
    for start in range(0, depth, CHUNK):
        target = totals if start == 0 else c
        _clear(target)
        _multiply(a, 0, b, 0, NARROW, depth, start, min(CHUNK, depth - start), m, width, target)
        if start > 0:
            for i in range(size):
                totals[i] += c[i]


@njit
def _sign(x):
    if np.isfinite(x):
        return F32(1) if x > 0 else (F32(-1) if x < 0 else F32(0))
    return x


@njit
def _shift(digits):
    return power_of_two(8 * max(0, digits - 2))


@njit
def contract(left, right, sums, m, digits, out):
    """out (m, SEGMENT) = rows of `left` with SEGMENT rows of `right`, packed by `pack_rows`."""
    depth = left.raw.shape[1]
    width = padded(SEGMENT)
    if digits == 0:
        _chains(left.narrow, right.narrow, sums, m, SEGMENT, depth)
        for i in range(m):
            line, row = sums.totals[i * width : i * width + SEGMENT], out[i]
            for j in range(SEGMENT):
                row[j] = line[j]
        return
    _exact(left.wide, right.wide, sums, m, SEGMENT, depth, digits)
    for i in range(m):
        power = left.power[i] * _shift(digits)
        line, row = sums.totals[i * width : i * width + SEGMENT], out[i]
        for j in range(SEGMENT):
            row[j] = F32(F64(line[j]) * power * right.power[j])
    some = False
    for j in range(SEGMENT):
        some |= right.special[j] != 0
    for i in range(m):
        if some or left.special[i]:
            for j in range(SEGMENT):
                if left.special[i] or right.special[j]:
                    t = F32(0)
                    for k in range(depth):
                        t = fma(_sign(left.raw[i, k]), _sign(right.raw[j, k]), t)
                    if not np.isfinite(t):
                        out[i, j] = t


@njit
def _quantise_weights(w, units, m, digits, weights):
    """Packs the integers of the weights, in units of their rows, and the power of each result."""
    line = weights.line
    for i in range(m):
        row = w[i]
        most = I64(0)
        for j in range(SEGMENT):
            v = row[j] if np.isfinite(row[j]) else F32(0)
            line[j] = F64(v) * units[j]
            most = max(most, bitcast(line[j]) & 0x7FFFFFFFFFFFFFFF)
        weights.power[i] = 0
        inverse = F64(0)
        if most > 0:
            f = exponent(bitcast(most), digits)
            weights.power[i] = power_of_two(f)
            inverse = power_of_two(-f)
        for j in range(SEGMENT):
            line[j] = nearest(line[j] * inverse)
        put_row(line, i, digits, True, weights.wide)


@njit
def weighted(w, seen, rows, weights, sums, m, digits):
    """sums.totals (m, padded width) = weights w (m, SEGMENT), +0 where not `seen`, with `rows`, packed by columns."""
    n = rows.raw.shape[1]
    width = padded(n)
    some = False
    for j in range(SEGMENT):
        some |= rows.special[j] != 0
    if digits == 0:
        for i in range(m):
            row, at = w[i], i // NARROW * SEGMENT * NARROW + i % NARROW
            for j in range(SEGMENT):
                weights.narrow[at + j * NARROW] = row[j]
        _chains(weights.narrow, rows.narrow, sums, m, n, SEGMENT)
        if some:  # then a weight of 0 is not as no weight
            for i in range(m):
                for c in range(n):
                    t = F32(0)
                    for j in range(SEGMENT):
                        if seen[i, j]:
                            t = fma(w[i, j], rows.raw[j, c], t)
                    sums.totals[i * width + c] = t
        return
    _quantise_weights(w, rows.power, m, digits, weights)
    _exact(weights.wide, rows.wide, sums, m, n, SEGMENT, digits)
    for i in range(m):
        power = weights.power[i] * _shift(digits)
        line = sums.totals[i * width : i * width + n]
        for c in range(n):
            line[c] = F32(F64(line[c]) * power)
        special = False
        for j in range(SEGMENT):
            special |= seen[i, j] != 0 and (rows.special[j] != 0 or not np.isfinite(w[i, j]))
        if special:
            for c in range(n):
                t = F32(0)
                for j in range(SEGMENT):
                    if seen[i, j]:
                        t = fma(_sign(w[i, j]), _sign(rows.raw[j, c]), t)
                if not np.isfinite(t):
                    line[c] = t
