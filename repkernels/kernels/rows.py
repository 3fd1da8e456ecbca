"""Rows along memory, one or several to a program: kept in registers in chunks of lanes, summed by the one rule.

A row of up to 1024 elements is one chunk of LANES, a power of two; a longer one is several of 1024. SUM adds chunks in
their order, lane by lane, and then halves the lanes (SPEC.md, "Sums"), so a chunk's element j stands on lane j.
Beyond 65536 elements the sums of blocks are collected and halved in turn.
"""

import triton
import triton.language as tl

from repkernels.kernels.functions import BLOCK, LANES, minus_zero

# More are read from memory again in every pass.
MOST_CHUNKS = 16
# A program's table of block sums has at most LANES entries.
LONGEST_ROW = BLOCK.value * LANES.value


@triton.jit
def halve(v, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """v[:, :h] + v[:, h:] of v (ROWS, WIDTH), WIDTH a power of two, until one is left -> (ROWS, 1)."""
    if ROWS == 1:
        # Triton 3.6 takes minutes over the layouts of (1, 2, h).
        v = tl.reshape(v, (WIDTH,))
        for i in tl.static_range(1, WIDTH.bit_length() - 1):
            v = tl.sum(tl.reshape(v, (2, WIDTH >> i)), 0)
        total = tl.broadcast_to(tl.sum(v, 0), (1, 1))
    else:
        for i in tl.static_range(1, WIDTH.bit_length()):
            v = tl.sum(tl.reshape(v, (ROWS, 2, WIDTH >> i)), 1)
        total = v
    return total


@triton.jit
def largest(v, ROWS: tl.constexpr):
    """The maximum of every row of v (ROWS, WIDTH) -> (ROWS, 1). A NaN may be lost, and of two zeros either may come."""
    if ROWS == 1:
        top = tl.broadcast_to(tl.max(tl.reshape(v, (v.numel,)), 0), (1, 1))
    else:
        top = tl.reshape(tl.max(v, 1), (ROWS, 1))
    return top


@triton.jit
def total_of(chunks, COUNT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """SUM over COUNT chunks (ROWS, WIDTH) of fp32 or fp64 -> (ROWS, 1). What lies beyond a row must be -0."""
    lanes = chunks[0]
    for c in tl.static_range(1, COUNT):
        lanes = lanes + chunks[c]
    return halve(lanes, ROWS, WIDTH)


@triton.jit
def where_present(v, present, EVEN: tl.constexpr):
    """v, or -0 where a row has no element; EVEN says that rows fill their chunks."""
    if EVEN:
        return v
    return tl.where(present, v, minus_zero(v.dtype))


def width_of(columns: int) -> int:
    """How many lanes a row of `columns` elements is laid on."""
    return min(LANES.value, triton.next_power_of_2(max(1, columns)))


def chunks_of(columns: int) -> int:
    """How many chunks a row has."""
    return max(1, triton.cdiv(columns, LANES.value))
