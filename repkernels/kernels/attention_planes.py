"""Digits of q, k and v laid out for the int8 products of attention_fixed.py: 16-bit numbers as two planes of bytes.

Rows lie by the tiles and segments that read them, so a tile begins on a border wherever its sequence does. The digits
of v lie by column, keys along memory, since int8 operands are read along the contracted axis.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.arith import power_of_two
from repkernels.kernels.attention_arguments import Call
from repkernels.kernels.attention_digits import NO_ROW, digits_of_rows
from repkernels.kernels.attention_rows import sequence, sequence_of
from repkernels.kernels.attention_segments import DENSE, SEGMENT
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv

Q, K, V = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# Exponents for which every scaling in attention_fixed.py is one exact multiplication.
LEAST, MOST = tl.constexpr(-50), tl.constexpr(30)


@triton.jit
def place_of(t):
    """The key of a segment, of 128, that lies at place t of the 128 of a row of v's digits.

    Within 16 keys those lie together whose weights one thread of a product has: (2i, 2i + 1, 2i + 8, 2i + 9) for i < 4.
    So the weights become an operand without a move between threads.
    """
    return (t & ~15) | ((t & 2) << 2) | ((t >> 1) & 6) | (t & 1)


@triton.jit
def in_order_of_places(w):
    """w (M, 128), keys ascending, with keys as `place_of` has them."""
    M: tl.constexpr = w.shape[0]
    return tl.reshape(tl.permute(tl.reshape(w, (M, 8, 2, 4, 2)), (0, 1, 3, 2, 4)), (M, 128))


@triton.jit(do_not_specialize=["B", "L", "S", "tiles", "scale"])
def attention_planes_kernel(
    x, planes, factors, flags, queries, lengths, first_key, first_query, B, L, S, HEADS, GROUP, TOTAL, tiles, scale,
    stride_b, stride_h, stride_r, WIDTH: tl.constexpr, BE: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
    LAYOUT: tl.constexpr, LENGTH: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one head into planes (2, HEADS, TOTAL, BE), or for KIND V (2, HEADS, BE, TOTAL).

    factors (HEADS, TOTAL): 2^e; for KIND Q times scale, for KIND V 0 where a row is 0. flags, of sequences and KV
    heads: set where a row has a non-finite element or an exponent beyond LEAST .. MOST.
    """
    of_rows = queries if KIND == Q else lengths
    b, head, tile = sequence_of(tl.program_id(0), of_rows, tiles, B, HEADS, ROWS, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    place = tl.arange(0, ROWS)
    if KIND == Q:
        low, end, offset = low * 0, count, row
    if KIND == V:
        place = place_of(place)
    position = low // SEGMENT * SEGMENT + tile * ROWS + place
    there = (position >= low) & (position < end)
    if LAYOUT == DENSE:
        first = b * tiles
    else:
        first = tl.load(of_rows + b) // ROWS + b
    columns = tl.arange(0, BE)
    at = tl.cast(batch, tl.int64) * stride_b + tl.cast(head, tl.int64) * stride_h
    at = at + (offset + position).to(tl.int64) * stride_r
    v = tl.load(x + at[:, None] + columns[None, :], mask=there[:, None] & (columns < WIDTH)[None, :], other=0.0)
    q, e, odd = digits_of_rows(v.to(tl.float32), 2)
    none = e == NO_ROW
    e = tl.where(none, 0, e)
    odd = tl.max(tl.where((odd > 0) | (e < LEAST) | (e > MOST), 1, 0), 0)
    if odd > 0:
        tl.atomic_max(flags + b * (HEADS // GROUP) + head // GROUP, odd)
    factor = power_of_two(tl.minimum(tl.maximum(e, LEAST), MOST))
    if KIND == Q:
        factor = factor * scale
    if KIND == V:
        factor = tl.where(none, 0.0, factor)
    line = tl.cast(head, tl.int64) * TOTAL + (first + tile) * ROWS
    tl.store(factors + line + place, factor)
    high, low_ = ((q >> 8) ^ 0x80).to(tl.int8), (q ^ 0x80).to(tl.int8)
    plane = tl.cast(HEADS, tl.int64) * TOTAL * BE
    if KIND == V:
        at = tl.cast(head, tl.int64) * BE * TOTAL + (first + tile) * ROWS
        at = planes + at + columns.to(tl.int64)[:, None] * TOTAL + tl.arange(0, ROWS)[None, :]
        high, low_ = tl.trans(high), tl.trans(low_)
    else:
        at = planes + (line + place)[:, None] * BE + columns[None, :]
    tl.store(at, high)
    tl.store(at + plane, low_)


class Planes(NamedTuple):
    """planes: as attention_planes_kernel leaves them, as one matrix; factors (heads, total); tiles: of a sequence."""

    planes: Tensor
    factors: Tensor
    tiles: int
    total: int


def planes_of(c: Call, x: Tensor, kind: int, rows: int, flags: Tensor) -> Planes:
    """The digits of x, which is q, k or v of c, by tiles of `rows` rows. flags: zeros, (sequences + 1) * KV heads."""
    s, constants = c.sequences, c.constants()
    batch, heads, length, width = x.shape
    dense = s.queries is None
    # Where positions begin within a segment there is one more.
    more = s.first_key is not None and kind != Q.value
    tiles = cdiv(length, rows) + more if dense else length // rows + c.batch + 1
    lines = tiles * (batch if dense else 1)
    total, BE = lines * rows, max(32, constants["BEV" if kind == V.value else "BE"])
    shape = (2 * heads * BE, total) if kind == V.value else (2 * heads * total, BE)
    planes = x.new_empty(shape, dtype=torch.int8)
    factors = x.new_empty((heads, total), dtype=torch.float32)
    some: Any = [x if t is None else t for t in (s.queries, s.keys, s.first_key, s.first_query)]
    kept = ("LAYOUT", "LENGTH", "FIRST_KEY", "FIRST_QUERY")
    launch(
        attention_planes_kernel, (lines * heads,), x, planes, factors, flags, *some, c.batch, c.q.shape[2],
        c.k.shape[2], heads, heads // c.k.shape[1], total, tiles, c.attention.scale, *x.stride()[:3], WIDTH=width,
        BE=BE, ROWS=rows, KIND=kind, num_warps=8, **{name: constants[name] for name in kept},
    )  # fmt: skip
    return Planes(planes, factors, tiles, total)
