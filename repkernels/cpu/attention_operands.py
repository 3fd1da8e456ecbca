"""Rows of attention's operands on a CPU: read from any format, quantised, and packed for the inner loops.

A contraction of integers is made of binary64 products, which are exact in any order while the magnitudes of the terms
add up to less than 2^53. With q the integer of an element, d its digits, H = 256 d_0 + d_1 and so |H| <= 32640, and
`low` = q - 65536 H, P / 256^max(0, S - 2) is

    S <= 2: q q'.      S = 3: H q' + d_2 H'.      S = 4: H q' + low H' + d_2 d_2'.

At most 4.5e12 over 4096 terms for S = 2, 1.2e15 for S = 3, and 8.94e15 < 2^53 over 128 terms for S = 4.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from repkernels.cpu.attention_places import SEGMENT
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, F64, I32, I64, _from_bf16, _from_fp16, _to_bf16, _to_fp16, bitcast
from repkernels.cpu.multiply import GROUPS
from repkernels.cpu.quantize import THRESHOLDS
from repkernels.cpu.vectors import BYTES

# Units of a packed group, fp32 and binary64, and what the columns of a product are padded to.
NARROW, WIDE = BYTES // 4, BYTES // 8
UNIT = GROUPS * NARROW
# Formats of memory.
FP32, BF16, FP16 = 0, 1, 2
# How rows are packed: as rows of the left or of the right operand, or so that their columns are contracted.
LEFT, RIGHT, COLUMNS = 0, 1, 2
# Added and subtracted, it rounds a binary64 number below 2^51 to an integer, half to even.
ROUNDER = F64(1.5 * 2.0**52)


class Operand(NamedTuple):
    """A tensor of four axes as memory: fp32, or half types as int16."""

    fp32: np.ndarray
    half: np.ndarray
    kind: int
    strides: tuple[int, ...]


class Packed(NamedTuple):
    """Rows as read, (n, width), and packed: groups of 8 rows of fp32 numbers, or of 4 of integers in binary64.

    wide: planes(digits) of them. power: 2^e of each row's exponent, 0 if it has no finite element but 0. special:
    whether it has an element that is not finite.
    """

    raw: np.ndarray
    narrow: np.ndarray
    wide: np.ndarray
    power: np.ndarray
    special: np.ndarray


def planes_of(digits: int) -> int:
    """Factors of one side that the products of a contraction have."""
    return max(1, digits - 1)


def padded(n: int) -> int:
    return -(-n // UNIT) * UNIT


@njit
def load_row(out, x, at, stride):
    """out = the elements at, at + stride, ... of x's memory."""
    n = out.size
    if x.kind == FP32:
        if stride == 1:
            numbers = x.fp32[at : at + n]
            for j in range(n):
                out[j] = numbers[j]
        else:
            for j in range(n):
                out[j] = x.fp32[at + j * stride]
    elif x.kind == BF16:
        if stride == 1:
            bits = x.half[at : at + n]
            for j in range(n):
                out[j] = _from_bf16(bits[j])
        else:
            for j in range(n):
                out[j] = _from_bf16(x.half[at + j * stride])
    else:
        for j in range(n):
            out[j] = _from_fp16(x.half[at + j * stride])


@njit
def store_row(values, x, at, stride):
    """Stores values, rounded to x's format, a zero as +0."""
    for j in range(values.size):
        r = values[j]
        if x.kind == FP32:
            x.fp32[at + j * stride] = r + F32(0)
        else:
            bits = _to_bf16(r) if x.kind == BF16 else np.int16(_to_fp16(r))
            x.half[at + j * stride] = np.int16(0) if bits == np.int16(-0x8000) else bits


@njit
def exponents(m, digits):
    """2^e and 2^-e for the smallest e with m * 2^-e <= L; m > 0 a binary64 number of 24 significant bits."""
    bits = bitcast(m)
    fraction = (bits >> 29 & 0x7FFFFF) | 0x800000
    e = (bits >> 52) - 1046 + 25 - 8 * digits + (1 if fraction > THRESHOLDS[digits - 1] else 0)
    return bitcast(I64((e + 1023) << 52)), bitcast(I64((1023 - e) << 52))


@njit
def factors(q, digits, left, plane, out):
    """out = what the product of that plane takes of the integers q."""
    if digits <= 2 or (plane == 0 and not left):
        for k in range(q.size):
            out[k] = q[k]
    elif digits == 3:
        upper = left == (plane == 0)
        for k in range(q.size):
            h = ((q[k] + 0.25) * 0.00390625 + ROUNDER) - ROUNDER
            out[k] = h if upper else q[k] - 256.0 * h
    else:
        top, last = left == (plane == 0), plane == 2
        for k in range(q.size):
            upper = ((q[k] + 0.25) * 0.00390625 + ROUNDER) - ROUNDER
            h = ((upper + 0.25) * 0.00390625 + ROUNDER) - ROUNDER
            out[k] = upper - 256.0 * h if last else (h if top else q[k] - 65536.0 * h)


@njit
def put_group(lines, spare, digits, left, out, at):
    """Packs WIDE rows of integers as neighbours; spare: of their shape."""
    count, rows = max(1, digits - 1), lines
    for plane in range(count):
        if digits > 2:
            rows = spare
            for i in range(WIDE):
                factors(lines[i], digits, left, plane, spare[i])
        a, b, c, d = rows[0], rows[1], rows[2], rows[3]
        start = at + plane * (out.size // count)
        target = out[start : start + WIDE * a.size]
        for k in range(a.size):
            target[4 * k] = a[k]
            target[4 * k + 1] = b[k]
            target[4 * k + 2] = c[k]
            target[4 * k + 3] = d[k]


@njit
def put_columns(line, spare, digits, out, at):
    """Packs the integers of one row of a segment, WIDE columns after another."""
    count, row = max(1, digits - 1), line
    for plane in range(count):
        if digits > 2:
            row = spare
            factors(line, digits, False, plane, spare)
        place = at + plane * (out.size // count)
        for first in range(0, row.size - WIDE + 1, WIDE):
            target, source = out[place : place + WIDE], row[first : first + WIDE]
            for c in range(WIDE):
                target[c] = source[c]
            place += WIDE * SEGMENT
        for c in range(row.size % WIDE):
            out[place + c] = row[row.size - row.size % WIDE + c]


@njit
def put_narrow(row, columns, out, at):
    """Packs one row of fp32 numbers: beside its neighbours, or by NARROW columns after another."""
    if columns:
        for first in range(0, row.size - NARROW + 1, NARROW):
            target, source = out[at : at + NARROW], row[first : first + NARROW]
            for c in range(NARROW):
                target[c] = source[c]
            at += NARROW * SEGMENT
        for c in range(row.size % NARROW):
            out[at + c] = row[row.size - row.size % NARROW + c]
    else:
        for k in range(row.size):
            out[at + NARROW * k] = row[k]


@njit
def integers(values, digits, line):
    """line = the integers of fp32 values; 2^e, or 0 if none is finite and not 0, and whether all are finite."""
    finite, every = I32(0), I32(0)
    for k in range(values.size):
        bits = I32(bitcast(values[k]) & 0x7FFFFFFF)
        every = max(every, bits)
        finite = max(finite, bits if bits < 0x7F800000 else I32(0))
    if digits == 0:
        return F64(0), every < 0x7F800000
    power, inverse = F64(0), F64(0)
    if finite > 0:
        power, inverse = exponents(F64(bitcast(finite)), digits)
    for k in range(values.size):
        v = values[k] if I32(bitcast(values[k]) & 0x7FFFFFFF) < 0x7F800000 else F32(0)
        line[k] = (F64(v) * inverse + ROUNDER) - ROUNDER
    return power, every < 0x7F800000


@kernel
def pack(x, batch, head, row, digits, how, packed):
    """Reads the rows (batch, head, row) of x, +0 where batch or row is negative, and packs them.

    LEFT, RIGHT: groups of neighbouring rows, a multiple of NARROW. COLUMNS: by segments of rows, each the right operand
    of its columns.
    """
    state = keep_subnormals()
    count, width = packed.raw.shape
    lines, spare, strides = np.empty((WIDE, width), np.float64), np.empty((WIDE, width), np.float64), x.strides
    columns = (width + UNIT - 1) // UNIT * UNIT
    for r in range(count):
        values = packed.raw[r]
        if batch[r] >= 0 and row[r] >= 0:
            load_row(values, x, batch[r] * strides[0] + head[r] * strides[1] + row[r] * strides[2], strides[3])
        else:
            for k in range(width):
                values[k] = 0
        power, finite = integers(values, digits, lines[r % WIDE])
        packed.special[r] = not finite
        of_segment, slot = r // SEGMENT * SEGMENT * columns, r % SEGMENT
        if digits == 0:
            by_columns = how == COLUMNS
            place = of_segment + slot * NARROW if by_columns else r // NARROW * NARROW * width + r % NARROW
            put_narrow(values, by_columns, packed.narrow, place)
            continue
        packed.power[r] = power
        if how == COLUMNS:
            put_columns(lines[r % WIDE], spare[0], digits, packed.wide, of_segment + slot * WIDE)
        elif r % WIDE == WIDE - 1:
            put_group(lines, spare, digits, how == LEFT, packed.wide, (r - WIDE + 1) * width)
    restore(state)


@kernel
def pack_weights(w, at, row_step, step, units, m, unit, digits, packed):
    """Packs m rows of SEGMENT weights for each segment of `units`, as left operands; m: a multiple of NARROW.

    Row i of the segment g has the elements w[at[g] + i * row_step + j * step], each times unit[g * SEGMENT + j] if
    `digits`. packed: (segments * m, SEGMENT); power and special are those of its rows.
    """
    state = keep_subnormals()
    lines, spare = np.empty((WIDE, SEGMENT), np.float64), np.empty((WIDE, SEGMENT), np.float64)
    for r in range(units * m):
        values, start, line = packed.raw[r], at[r // m] + r % m * row_step, lines[r % WIDE]
        if step == 1:
            source = w[start : start + SEGMENT]
            for j in range(SEGMENT):
                values[j] = source[j]
        else:
            for j in range(SEGMENT):
                values[j] = w[start + j * step]
        if digits == 0:
            put_narrow(values, False, packed.narrow, r // NARROW * NARROW * SEGMENT + r % NARROW)
            continue
        own = unit[r // m * SEGMENT : (r // m + 1) * SEGMENT]
        every, most = I32(0), I64(0)
        for j in range(SEGMENT):
            bits = I32(bitcast(values[j]) & 0x7FFFFFFF)
            every = max(every, bits)
            u = F64(values[j] if bits < 0x7F800000 else F32(0)) * own[j]
            line[j] = u
            most = max(most, bitcast(u) & 0x7FFFFFFFFFFFFFFF)
        packed.special[r] = every >= 0x7F800000
        power, inverse = F64(0), F64(0)
        if most > 0:
            power, inverse = exponents(bitcast(most), digits)
        packed.power[r] = power
        for j in range(SEGMENT):
            line[j] = (line[j] * inverse + ROUNDER) - ROUNDER
        if r % WIDE == WIDE - 1:
            put_group(lines, spare, digits, True, packed.wide, (r - WIDE + 1) * SEGMENT)
    restore(state)
