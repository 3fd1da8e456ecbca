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
    strides: tuple[int, int, int, int]


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
    if x.kind == FP32:
        for j in range(out.size):
            out[j] = x.fp32[at + j * stride]
    elif x.kind == BF16:
        for j in range(out.size):
            out[j] = _from_bf16(x.half[at + j * stride])
    else:
        for j in range(out.size):
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
def put_factors(line, digits, left, out, plane, at, step, group):
    """Puts what products take of the integers `line` to out[at + k // step * group + k % step], ... of each plane."""
    for first in range(0, line.size, step):
        place = at + first // step * group
        for c in range(min(step, line.size - first)):
            q = line[first + c]
            if digits <= 2:
                out[place + c] = q
                continue
            upper = ((q + 0.25) * 0.00390625 + ROUNDER) - ROUNDER
            if digits == 3:
                out[place + c] = upper if left else q
                out[place + plane + c] = q - 256.0 * upper if left else upper
            else:
                top = ((upper + 0.25) * 0.00390625 + ROUNDER) - ROUNDER
                out[place + c] = top if left else q
                out[place + plane + c] = q - 65536.0 * top if left else top
                out[place + 2 * plane + c] = upper - 256.0 * top


@kernel
def pack(x, batch, head, row, digits, how, packed):
    """Reads the rows (batch, head, row) of x, +0 where batch or row is negative, and packs them.

    LEFT, RIGHT: groups of neighbouring rows. COLUMNS: by segments of rows; each a right operand of its columns.
    """
    state = keep_subnormals()
    count, width = packed.raw.shape
    line, strides = np.empty(width, np.float64), x.strides
    columns = (width + UNIT - 1) // UNIT * UNIT
    lanes = NARROW if digits == 0 else WIDE
    plane = packed.wide.size // max(1, digits - 1)
    for r in range(count):
        values = packed.raw[r]
        if batch[r] >= 0 and row[r] >= 0:
            at = batch[r] * strides[0] + head[r] * strides[1] + row[r] * strides[2]
            if strides[3] == 1:
                load_row(values, x, at, 1)
            else:
                load_row(values, x, at, strides[3])
        else:
            for k in range(width):
                values[k] = 0
        finite, every = I32(0), I32(0)
        for k in range(width):
            bits = I32(bitcast(values[k]) & 0x7FFFFFFF)
            every = max(every, bits)
            finite = max(finite, bits if bits < 0x7F800000 else I32(0))
        packed.special[r] = every >= 0x7F800000
        if how == COLUMNS:
            place, step, group = r // SEGMENT * SEGMENT * columns + r % SEGMENT * lanes, lanes, SEGMENT * lanes
        else:
            place, step, group = r // lanes * lanes * width + r % lanes, 1, lanes
        if digits == 0:
            for first in range(0, width, step):
                for c in range(min(step, width - first)):
                    packed.narrow[place + first // step * group + c] = values[first + c]
            continue
        power, inverse = F64(0), F64(0)
        if finite > 0:
            power, inverse = exponents(F64(bitcast(finite)), digits)
        packed.power[r] = power
        for k in range(width):
            v = values[k] if I32(bitcast(values[k]) & 0x7FFFFFFF) < 0x7F800000 else F32(0)
            line[k] = (F64(v) * inverse + ROUNDER) - ROUNDER
        put_factors(line, digits, how == LEFT, packed.wide, plane, place, step, group)
    restore(state)


@kernel
def pack_weights(w, at, row_step, step, units, m, unit, digits, packed):
    """Packs m rows of SEGMENT weights for each segment of `units`, as left operands.

    Row i of the segment g has the elements w[at[g] + i * row_step + j * step], each times unit[g * SEGMENT + j] if
    `digits`. packed: (segments * m, SEGMENT); power and special are those of its rows.
    """
    state = keep_subnormals()
    line = np.empty(SEGMENT, np.float64)
    lanes = NARROW if digits == 0 else WIDE
    plane = packed.wide.size // max(1, digits - 1)
    for r in range(units * m):
        values, start, own = packed.raw[r], at[r // m] + r % m * row_step, r // m * SEGMENT
        for j in range(SEGMENT):
            values[j] = w[start + j * step]
        place = r // lanes * lanes * SEGMENT + r % lanes
        if digits == 0:
            for j in range(SEGMENT):
                packed.narrow[place + j * lanes] = values[j]
            continue
        most, special = I64(0), False
        for j in range(SEGMENT):
            finite = I32(bitcast(values[j]) & 0x7FFFFFFF) < 0x7F800000
            special |= not finite
            u = F64(values[j] if finite else F32(0)) * unit[own + j]
            line[j] = u
            most = max(most, bitcast(u) & 0x7FFFFFFFFFFFFFFF)
        packed.special[r] = special
        power, inverse = F64(0), F64(0)
        if most > 0:
            power, inverse = exponents(bitcast(most), digits)
        packed.power[r] = power
        for j in range(SEGMENT):
            line[j] = (line[j] * inverse + ROUNDER) - ROUNDER
        put_factors(line, digits, True, packed.wide, plane, place, 1, lanes)
    restore(state)
