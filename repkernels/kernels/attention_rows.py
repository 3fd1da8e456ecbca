"""Rows of an attention tile: which sequence a program works on, which rows of q, heads and positions are its own.

A tile of M rows holds M // FOLD queries of FOLD neighbouring query heads that read one KV head: row r is query
r // FOLD and head r % FOLD. Where sequences lie one after another, tile t belongs to the last sequence b whose first
tile, queries[b] // (M // FOLD) + b, is not after t; so the host need not know where sequences begin. The rows after the
last sequence are one more, without keys.
"""

import triton
import triton.language as tl

from repkernels.kernels.attention_segments import DENSE, PACKED


@triton.jit
def sequence_of(item, queries, tiles, B, HEADS, SIZE: tl.constexpr, LAYOUT: tl.constexpr, LENGTH: tl.constexpr):
    """(sequence, block of heads of HEADS, tile within the sequence) of item: tiles fastest, then heads.

    SIZE: queries of a tile. tiles: of a dense sequence, or of all sequences. LENGTH: a power of two above B.
    Dense tiles are taken from the last, which see most under a causal mask.
    """
    if LAYOUT == DENSE:
        b = item // tiles // HEADS
        head = item // tiles % HEADS
        inner = tiles - 1 - item % tiles
    else:
        head = item // tiles
        tile = item % tiles
        i = tl.arange(0, LENGTH)
        first = tl.load(queries + i, mask=(i > 0) & (i <= B), other=0) // SIZE + i
        before = (i <= B) & (first <= tile)
        b = tl.sum(before.to(tl.int32), 0) - 1
        inner = tile - tl.max(tl.where(before, first, 0), 0)
    return b, head, inner


@triton.jit
def sequence(
    b, queries, keys, first_key, first_query, B, L, S,
    LAYOUT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr,
):  # fmt: skip
    """Sequence b: (batch in memory, first row of q, rows of q, memory index of position 0, least position of a key,
    end of the positions, position of the first row). L, S: rows of q and keys of a batch in memory.

    A paged sequence has no index of position 0.
    """
    if LAYOUT == DENSE:
        batch, row, rows = b, b * 0, b * 0 + L
        offset = tl.load(first_key + b) if FIRST_KEY else b * 0
        start = tl.load(first_query + b) if FIRST_QUERY else b * 0
        low, end = tl.maximum(-offset, 0), S - offset
    else:
        batch, low = b * 0, b * 0
        last = b == B
        row = tl.load(queries + b)
        rows = tl.load(queries + b + 1, mask=b < B, other=0)
        rows = tl.where(last, L, rows) - row
        if LAYOUT == PACKED:
            offset = tl.load(keys + b)
            end = tl.load(keys + b + 1, mask=b < B, other=0) - offset
        else:
            offset = b * 0
            end = tl.load(keys + b, mask=b < B, other=0)
        end = tl.where(last, 0, end)
        start = end - rows
    return batch, row, rows, offset, low, end, start


@triton.jit
def rows_of_pass(alone, tile, start, count, r, block, SIZE: tl.constexpr, FOLD: tl.constexpr):
    """Which of rows r a pass computes, the first and last position of its queries, and the queries and heads whose
    visibility rows take: their own, or in the pass of one row `alone`, if not negative, all take that row's."""
    together = alone < 0
    query = tile * SIZE + tl.where(together, r, alone) // FOLD
    head = block * FOLD + tl.where(together, r, alone) % FOLD
    first = start + tile * SIZE + tl.where(together, 0, alone // FOLD)
    last = tl.where(together, tl.minimum(start + (tile + 1) * SIZE, start + count) - 1, first)
    return tl.where(together, r >= 0, r == alone), first, last, query, head


@triton.jit
def next_pass(alone, special, M: tl.constexpr):
    """Whether another pass follows: rows by themselves, if the first pass found what must not be multiplied by +0."""
    return tl.where(alone < 0, special > 0, alone + 1 < M)
