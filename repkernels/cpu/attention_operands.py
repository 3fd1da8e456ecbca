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

from repkernels.cpu.functions import F32, F64, I32, I64, _from_bf16, _from_fp16, _to_bf16, _to_fp16, bitcast
from repkernels.cpu.multiply import GROUPS
from repkernels.cpu.quantize import THRESHOLDS
from repkernels.cpu.vectors import BYTES

SEGMENT = 128
# Rows and columns of packed operands are multiples of what the inner loops take at a time in either format.
NARROW, WIDE = BYTES // 4, BYTES // 8
UNIT = GROUPS * NARROW
# Formats of memory.
FP32, BF16, FP16 = 0, 1, 2
# Added and subtracted, it rounds a binary64 number below 2^51 to an integer, half to even.
ROUNDER = F64(1.5 * 2.0**52)


class Rows(NamedTuple):
    """Rows, and what the inner loops read: groups of 8 rows of fp32 numbers, or of 4 of integers in binary64.

    raw: (n, width) fp32. narrow, wide: packed; `wide` has `planes(digits)` planes. power: 2^e of each row's exponent,
    0 if it has no finite element but 0. special: whether it has one that is not finite.
    """

    raw: np.ndarray
    narrow: np.ndarray
    wide: np.ndarray
    power: np.ndarray
    special: np.ndarray


@njit
def planes(digits):
    """Factors of one side that the products of a contraction have."""
    return max(1, digits - 1)


@njit
def padded(n):
    return (n + UNIT - 1) // UNIT * UNIT


@njit
def rows_of(n, width, digits):
    """Memory for n rows of `width`, which `pack_rows` or `pack_columns` packs."""
    size = max(padded(n) * width, padded(width) * n)
    return Rows(
        np.zeros((padded(n), width), np.float32),
        np.zeros(size if digits == 0 else 0, np.float32),
        np.zeros(planes(digits) * size if digits > 0 else 0, np.float64),
        np.zeros(padded(n), np.float64),
        np.zeros(padded(n), np.uint8),
    )


@njit
def load_row(out, fp32, half, kind, at, stride):
    """out = the elements at, at + stride, ... of memory of format `kind`: of `fp32`, or of `half`, int16."""
    if kind == FP32:
        if stride == 1:
            source = fp32[at : at + out.size]
            for j in range(out.size):
                out[j] = source[j]
        else:
            for j in range(out.size):
                out[j] = fp32[at + j * stride]
    elif kind == BF16:
        if stride == 1:
            bits = half[at : at + out.size]
            for j in range(out.size):
                out[j] = _from_bf16(bits[j])
        else:
            for j in range(out.size):
                out[j] = _from_bf16(half[at + j * stride])
    else:
        for j in range(out.size):
            out[j] = _from_fp16(half[at + j * stride])


@njit
def store_row(values, fp32, half, kind, at, stride):
    """Stores values, rounded to the format, a zero as +0."""
    for j in range(values.size):
        r = values[j] + F32(0)
        if kind == FP32:
            fp32[at + j * stride] = r
        elif kind == BF16:
            half[at + j * stride] = _positive(_to_bf16(r))
        else:
            half[at + j * stride] = _positive(np.int16(_to_fp16(r)))


@njit
def _positive(bits):
    return np.int16(0) if bits == np.int16(-0x8000) else bits


@njit
def power_of_two(e):
    """2^e in binary64, -1022 <= e <= 1023."""
    return bitcast(I64((I64(e) + 1023) << 52))


@njit
def exponent(m, digits):
    """The smallest e with m * 2^-e <= L, m > 0 a binary64 number of 24 significant bits."""
    bits = bitcast(m)
    fraction = (bits >> 29 & 0x7FFFFF) | 0x800000
    return (bits >> 52) - 1046 + 25 - 8 * digits + (1 if fraction > THRESHOLDS[digits - 1] else 0)


@njit
def nearest(x):
    return (x + ROUNDER) - ROUNDER


@njit
def _magnitudes(row):
    """The largest magnitude of the finite elements, and whether all are finite."""
    finite, every = I32(0), I32(0)
    for k in range(row.size):
        bits = I32(bitcast(row[k]) & 0x7FFFFFFF)
        every = max(every, bits)
        finite = max(finite, bits if bits < 0x7F800000 else I32(0))
    return F64(bitcast(finite)), every < 0x7F800000


@njit
def _quantise(x, r, digits, line):
    """line = the integers of row r; its power and whether it is special."""
    row = x.raw[r]
    m, finite = _magnitudes(row)
    x.special[r] = 0 if finite else 1
    x.power[r] = 0
    inverse = F64(0)
    if m > 0:
        e = exponent(m, digits)
        x.power[r] = power_of_two(e)
        inverse = power_of_two(-e)
    for k in range(row.size):
        v = row[k] if I32(bitcast(row[k]) & 0x7FFFFFFF) < 0x7F800000 else F32(0)
        line[k] = nearest(F64(v) * inverse)


@njit
def factor(q, digits, left, plane):
    """The factor that a product takes of the integer q."""
    if digits <= 2 or (plane == 0 and not left):
        return q
    upper = nearest((q + 0.25) * 0.00390625)
    if digits == 3:
        return upper if left == (plane == 0) else q - 256.0 * upper
    top = nearest((upper + 0.25) * 0.00390625)
    if plane == 2:
        return upper - 256.0 * top
    return top if left == (plane == 0) else q - 65536.0 * top


@njit
def put_row(line, r, digits, left, out):
    """Row r of a packed operand, from its integers."""
    depth = line.size
    plane_size = out.size // planes(digits)
    for plane in range(planes(digits)):
        at = plane * plane_size + r // WIDE * depth * WIDE + r % WIDE
        for k in range(depth):
            out[at + k * WIDE] = factor(line[k], digits, left, plane)


@njit
def pack_rows(x, n, digits, left, line):
    """Packs the first n of x.raw, which are contracted along their width; line: scratch of that size."""
    width = x.raw.shape[1]
    for r in range(n):
        if digits > 0:
            _quantise(x, r, digits, line)
            put_row(line, r, digits, left, x.wide)
        else:
            row, at = x.raw[r], r // NARROW * width * NARROW + r % NARROW
            for k in range(width):
                x.narrow[at + k * NARROW] = row[k]


@njit
def pack_columns(x, digits, line):
    """Packs SEGMENT rows of x.raw, whose columns are the right operands of `weighted`."""
    width = x.raw.shape[1]
    for r in range(SEGMENT):
        row = x.raw[r]
        if digits == 0:
            x.special[r] = 0 if _magnitudes(row)[1] else 1
            for first in range(0, width, NARROW):
                at = first * SEGMENT + r * NARROW
                for c in range(min(NARROW, width - first)):
                    x.narrow[at + c] = row[first + c]
            continue
        _quantise(x, r, digits, line)
        plane_size = x.wide.size // planes(digits)
        for plane in range(planes(digits)):
            for first in range(0, width, WIDE):
                at = plane * plane_size + first * SEGMENT + r * WIDE
                for c in range(min(WIDE, width - first)):
                    x.wide[at + c] = factor(line[first + c], digits, False, plane)
