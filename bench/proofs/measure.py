"""RN32(f(x)) of consecutive fp32 bit patterns from double-double values, and how sure that rounding is."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import round_to_odd
from repkernels.kernels.launch import launch

from . import tables
from .double_double import quick_two_sum
from .functions import PARTIAL, TRUTHS

# Elements of a program: on a GPU few, since each keeps a dozen binary64 numbers in registers; in the interpreter many.
SIZE = {"cuda": 256, "cpu": 1 << 15}


@triton.jit
def number(bits):
    """fp32 numbers of int64 bit patterns."""
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def round32(h, l):
    """RN32(h + l) once, |l| <= ulp(h) / 2, as int64 bits without sign extension."""
    h, l = quick_two_sum(h, l)
    return round_to_odd(h, l).to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF


@triton.jit
def midpoint_distance(bits, h, l):
    """How far h + l is from the nearer end of the interval that rounds to `bits`, in ulp of that side."""
    infinite = (bits & 0x7FFFFFFF) == 0x7F800000
    value = number(bits).to(tl.float64)
    value = tl.where(infinite, tl.where(value > 0.0, 2.0**128, -(2.0**128)), value)
    away = (h - value) + l
    outward = (away > 0.0) == (bits < 0x80000000)
    size = bits & 0x7FFFFFFF
    other = tl.where((size == 0) | (outward & (size < 0x7F7FFFFF)), size + 1, size - 1)
    step = number(other | (bits & 0x80000000)).to(tl.float64) - value
    # Above the largest number the next one would be 2^128, which the format has not.
    step = tl.where(outward & (size == 0x7F7FFFFF), value * 2.0**-24 / (1.0 - 2.0**-24), step)
    # The midpoint has 25 bits and is near h, so that nothing is rounded before l is added.
    distance = tl.abs(((h - (value + step * 0.5)) + l) / step)
    return tl.where(infinite & outward, 0.5, distance)


@triton.jit
def measure_kernel(
    first, patterns, right, distance, table, words, count, TRUTH: tl.constexpr, LISTED: tl.constexpr, SIZE: tl.constexpr
):
    """right[i]: the fp32 bits of RN32(f(x)), in int32. distance[i]: from a midpoint, in ulp, 0 where undecided.

    x has the bits first + i, or patterns[i] if LISTED.
    """
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    bits = first + i
    if LISTED:
        bits = tl.load(patterns + i, mask=inside, other=0)
    x = number(bits)
    valid = x == x
    x = tl.where(valid, x, 1.0).to(tl.float64)
    h, l, doubt = TRUTH(x, table, words)
    valid = valid & (h == h)
    h, l, doubt = tl.where(valid, h, 0.0), tl.where(valid, l, 0.0), tl.where(valid, doubt, 0.0)
    # A sum with +0 would lose the sign of -0.
    zero = h == 0.0
    nearest = tl.where(zero, h.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF, round32(h, l))
    decided = zero | ((round32(h, l - doubt) == nearest) & (round32(h, l + doubt) == nearest))
    apart = tl.where(decided & (zero == 0), midpoint_distance(nearest, h, l), tl.where(zero, 0.5, 0.0))
    nearest = tl.where(valid, nearest, 0x7FC00000)
    tl.store(right + i, nearest.to(tl.int32), mask=inside)
    tl.store(distance + i, apart, mask=inside)


def measure(name: str, bits: range | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """RN32(f(x)) as int32 bits, and distances from midpoints, of consecutive bit patterns or of int64 ones listed."""
    count = len(bits)
    listed = isinstance(bits, Tensor)
    patterns = bits.to(device) if isinstance(bits, Tensor) else torch.empty(1, dtype=torch.int64, device=device)
    right = torch.empty(count, dtype=torch.int32, device=device)
    distance = torch.empty(count, dtype=torch.float64, device=device)
    size = SIZE[device.type]
    launch(
        measure_kernel,
        (triton.cdiv(count, size),),
        0 if isinstance(bits, Tensor) else bits.start,
        patterns,
        right,
        distance,
        tables.table(device),
        tables.words(device),
        count,
        TRUTH=TRUTHS[name] if name in TRUTHS else PARTIAL[name],
        LISTED=listed,
        SIZE=size,
    )
    return right, distance


@triton.jit
def words_kernel(patterns, high, low, doubt, table, words, count, TRUTH: tl.constexpr, SIZE: tl.constexpr):
    """The double-double values themselves, for a check of their error bound."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    h, l, d = TRUTH(number(tl.load(patterns + i, mask=inside, other=0x3F000000)).to(tl.float64), table, words)
    tl.store(high + i, h, mask=inside)
    tl.store(low + i, l, mask=inside)
    tl.store(doubt + i, d, mask=inside)


def double_doubles(name: str, patterns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """High words, low words and error bounds at fp32 bit patterns (int64)."""
    device, count = patterns.device, len(patterns)
    high, low, doubt = (torch.empty(count, dtype=torch.float64, device=device) for _ in range(3))
    places: tuple[Any, ...] = (patterns, high, low, doubt, tables.table(device), tables.words(device))
    size = SIZE[device.type]
    launch(words_kernel, (triton.cdiv(count, size),), *places, count, TRUTH=TRUTHS[name], SIZE=size)
    return high, low, doubt


def chunks(first: int, last: int, size: int) -> Iterator[range]:
    """range(first, last) in pieces of at most `size`."""
    for start in range(first, last, size):
        yield range(start, min(start + size, last))
