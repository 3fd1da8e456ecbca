"""Rows along memory, one or several to a program: kept in registers in chunks of lanes, summed by the one rule.

A row of up to 1024 elements is one chunk of LANES, a power of two; a longer one is several of 1024. SUM adds chunks in
their order, lane by lane, and then halves the lanes (SPEC.md, "Sums"), so a chunk's element j stands on lane j.
Beyond 65536 elements the sums of blocks are collected and halved in turn.
"""

import triton
import triton.language as tl

from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum
from repkernels.kernels.sizes import cdiv, next_power_of_2

# More are read from memory again in every pass.
MOST_CHUNKS = 16
# A program's table of block sums has at most LANES entries.
LONGEST_ROW = BLOCK.value * LANES.value


@triton.jit
def halve(v, ROWS: tl.constexpr, WIDTH: tl.constexpr, WARPS: tl.constexpr = 1):
    """v[:, :h] + v[:, h:] of v (ROWS, WIDTH), WIDTH a power of two, until one is left -> (ROWS, 1).

    WARPS: those of the program, if it has one row; they are slow to exchange values, so all but the last few halvings
    are laid within threads and warps.
    """
    if ROWS > 1:
        for i in tl.static_range(1, WIDTH.bit_length()):
            v = tl.sum(tl.reshape(v, (ROWS, 2, WIDTH >> i)), 1)
        total = v
    elif WARPS > 1 and WIDTH >= 64 * WARPS:
        total = tl.broadcast_to(_halve_by_warps(tl.reshape(v, (WIDTH,)), WIDTH, WARPS), (1, 1))
    else:
        # In one dimension, since Triton 3.6 takes minutes over the layouts of (1, 2, h).
        total = tl.broadcast_to(tree_sum(tl.reshape(v, (WIDTH,)), WIDTH), (1, 1))
    return total


@triton.jit
def _halve_by_warps(v, WIDTH: tl.constexpr, WARPS: tl.constexpr):
    """`tree_sum`, with v gathered so that its index's high bits lie in registers, then lanes, and the lowest in warps.

    A tensor of offsets is laid out in the order lane, warp, register, from the lowest bit on, and so is what is
    gathered by one. Where another layout is chosen the sum is the same, and slower.
    """
    COUNT: tl.constexpr = WIDTH // (32 * WARPS)
    place = tl.arange(0, WIDTH)
    lane, warp, register = place & 31, (place // 32) & (WARPS - 1), place // (32 * WARPS)
    v = tl.gather(v, (register * 32 + lane) * WARPS + warp, 0)
    for i in tl.static_range(1, COUNT.bit_length()):
        v = tl.sum(tl.reshape(v, (2, (COUNT >> i) * 32 * WARPS)), 0)
    for i in tl.static_range(1, 6):
        v = tl.sum(tl.reshape(v, (WARPS, 2, 32 >> i)), 1)
    return tree_sum(tl.reshape(v, (WARPS,)), WARPS)


@triton.jit
def largest(v, ROWS: tl.constexpr):
    """The maximum of every row of v (ROWS, WIDTH) -> (ROWS, 1). A NaN may be lost, and of two zeros either may come."""
    if ROWS == 1:
        top = tl.broadcast_to(tl.max(tl.reshape(v, (v.numel,)), 0), (1, 1))
    else:
        top = tl.reshape(tl.max(v, 1), (ROWS, 1))
    return top


@triton.jit
def total_of(chunks, COUNT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, WARPS: tl.constexpr = 1):
    """SUM over COUNT chunks (ROWS, WIDTH) of fp32 or fp64 -> (ROWS, 1). What lies beyond a row must be -0."""
    lanes = chunks[0]
    for c in tl.static_range(1, COUNT):
        lanes = lanes + chunks[c]
    return halve(lanes, ROWS, WIDTH, WARPS)


@triton.jit
def where_present(v, present, EVEN: tl.constexpr):
    """v, or -0 where a row has no element; EVEN says that rows fill their chunks."""
    if EVEN:
        return v
    return tl.where(present, v, minus_zero(v.dtype))


def width_of(columns: int) -> int:
    """How many lanes a row of `columns` elements is laid on."""
    return min(LANES.value, next_power_of_2(max(1, columns)))


def chunks_of(columns: int) -> int:
    """How many chunks a row has."""
    return max(1, cdiv(columns, LANES.value))
