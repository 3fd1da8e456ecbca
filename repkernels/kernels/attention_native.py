"""`native` attention of many query rows (SPEC.md, "Attention", "native"): segments are merged as they come.

Segments that every row of a tile sees whole are read by bulk copies and have no code for what a row sees; those at the
diagonal and at the ends of a sequence or window do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl

from repkernels.kernels.attention_arguments import Call, describable, describe, in_bulk, to_base_2
from repkernels.kernels.attention_decode import decode_native, tile_of_few
from repkernels.kernels.attention_native_segment import pages_of_segment, segment_of
from repkernels.kernels.attention_rows import next_pass, rows_of_pass, sequence, sequence_of
from repkernels.kernels.attention_segments import (
    SEGMENT,
    merged,
    ratios,
    reach,
    segments,
    store_rows,
    whole_pages,
)
from repkernels.kernels.attention_tiles import TILES, UNSPLIT, Tile, stages_of
from repkernels.kernels.launch import launch

UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "factor", "inner"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_native_kernel(
    q, k, v, keys, values, out, lse, mask, sinks, queries, lengths, table, first_key, first_query, B, L, S, HQ, HKV,
    tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml,
    stride_mk, left, right, factor, inner, E: tl.constexpr, EV: tl.constexpr, LAYOUT: tl.constexpr,
    LENGTH: tl.constexpr, PAGE: tl.constexpr, DESCRIBED: tl.constexpr, FOLD: tl.constexpr, SIZE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    NEGATE: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BM: tl.constexpr,
    BE: tl.constexpr, BEV: tl.constexpr,
):  # fmt: skip
    """One tile of BM rows. q, k, v, out: contiguous along E but for out."""
    b, block, tile = sequence_of(tl.program_id(0), queries, tiles, B, HQ // FOLD, SIZE, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    DIFFER: tl.constexpr = SIZE > 1 or MASK > 0
    r = tl.arange(0, BM)
    query, heads = tile * SIZE + r // FOLD, block * FOLD + r % FOLD
    head = (block * FOLD * HKV) // HQ
    memory = (row + query).to(tl.int64)
    wide = tl.cast(batch, tl.int64)
    k_head, v_head = k + tl.cast(head, tl.int64) * stride_kh, v + tl.cast(head, tl.int64) * stride_vh
    mask_b = mask + wide * stride_mb

    # All rows at once, and where that will not do each by itself.
    alone = tile * 0 - 1
    more = tile * SIZE < count
    while more:
        in_tile, first, last, query_m, head_m = rows_of_pass(alone, tile, start, count, r, block, SIZE, FOLD)
        valid = in_tile & (query < count) & (r < SIZE * FOLD)
        begin, whole, whole_end, finish = segments(first, last, low, end, left, right, LEFT, RIGHT)
        if MASK:
            whole, whole_end = begin, begin
        elif PAGE > 0:
            whole, whole_end = whole_pages(begin, whole, whole_end, b, table, stride_table, PAGE)
        least, stop = reach(start + query_m, low, end, left, right, LEFT, RIGHT)
        lowest, _ = reach(first, low, end, left, right, LEFT, RIGHT)
        _, highest = reach(last, low, end, left, right, LEFT, RIGHT)
        mask_at = mask_b + (row + query_m).to(tl.int64) * stride_ml + head_m.to(tl.int64) * stride_mh

        columns = tl.arange(0, BE)
        q_at = q + wide * stride_qb + memory * stride_ql + heads.to(tl.int64) * stride_qh
        qq = tl.load(q_at[:, None] + columns[None, :], mask=valid[:, None] & (columns < E)[None, :], other=0.0)
        m = tl.full((BM,), float("-inf"), tl.float32)
        l = tl.zeros((BM,), tl.float32)
        o = tl.zeros((BM, BEV), tl.float32)
        special = tile * 0
        page = pages_of_segment(begin, lowest, highest, b, table, stride_table, PAGE)
        if LEFT or FIRST_KEY:
            for g in tl.range(begin, whole, num_stages=1):
                m_seg, l_seg, o_seg, found = segment_of(
                    qq, g, page, least, stop, lowest, highest, valid, k_head, v_head, keys, values, batch, head, offset,
                    stride_kb, stride_ks, stride_vb, stride_vs, mask_at, stride_mk, factor, inner,
                    E, EV, PAGE, DESCRIBED, True, not (LEFT or FIRST_KEY), MASK, NEGATE, SOFTCAP, DIFFER, BE, BEV,
                )  # fmt: skip
                page = pages_of_segment(g + 1, lowest, highest, b, table, stride_table, PAGE)
                m, x, y = ratios(m, m_seg, l_seg, True, True)
                l, o = merged(l, l_seg, x, y), merged(o, o_seg, x[:, None], y[:, None])
                special = tl.maximum(special, found)
        if not MASK:
            for g in tl.range(whole, whole_end):
                m_seg, l_seg, o_seg, found = segment_of(
                    qq, g, page, least, stop, lowest, highest, valid, k_head, v_head, keys, values, batch, head, offset,
                    stride_kb, stride_ks, stride_vb, stride_vs, mask_at, stride_mk, factor, inner,
                    E, EV, PAGE, DESCRIBED, False, not (LEFT or FIRST_KEY), MASK, NEGATE, SOFTCAP, DIFFER, BE, BEV,
                )  # fmt: skip
                page = pages_of_segment(g + 1, lowest, highest, b, table, stride_table, PAGE)
                m, x, y = ratios(m, m_seg, l_seg, True, False)
                l, o = merged(l, l_seg, x, y), merged(o, o_seg, x[:, None], y[:, None])
        for g in tl.range(whole_end, finish, num_stages=1):
            m_seg, l_seg, o_seg, found = segment_of(
                qq, g, page, least, stop, lowest, highest, valid, k_head, v_head, keys, values, batch, head, offset,
                stride_kb, stride_ks, stride_vb, stride_vs, mask_at, stride_mk, factor, inner,
                E, EV, PAGE, DESCRIBED, True, not (LEFT or FIRST_KEY), MASK, NEGATE, SOFTCAP, DIFFER, BE, BEV,
            )  # fmt: skip
            page = pages_of_segment(g + 1, lowest, highest, b, table, stride_table, PAGE)
            m, x, y = ratios(m, m_seg, l_seg, True, True)
            l, o = merged(l, l_seg, x, y), merged(o, o_seg, x[:, None], y[:, None])
            special = tl.maximum(special, found)

        columns_v = tl.arange(0, BEV)
        out_at = out + wide * stride_ob + memory * stride_ol + heads.to(tl.int64) * stride_oh
        lse_at = lse + wide * stride_lb + heads.to(tl.int64) * stride_lh + memory
        store_rows(m, l, o, valid, out_at, stride_oe, lse_at, sinks, heads, columns_v, EV, True, LSE, SINKS)
        more = next_pass(alone, special, SIZE * FOLD)
        alone += 1


FEW = 16  # query rows of a sequence that are taken to be a decode step

_forced: ContextVar[tuple[Tile, int] | None] = ContextVar("repkernels_attention_tile", default=None)


@contextmanager
def use_tile(tile: Tile, fold: int = 1) -> Iterator[None]:
    """Attention inside the block uses these tiles, keys unsplit: for proofs that they change no bit, and for tuning."""
    token = _forced.set((tile, fold))
    try:
        yield
    finally:
        _forced.reset(token)


def attention_native(c: Call) -> None:
    """Writes c.out and c.lse."""
    factor, inner, negate = to_base_2(c.attention)
    constants = c.constants()
    options = {"NEGATE": negate}
    wide = max(constants["BE"], constants["BEV"], 64)
    if forced := _forced.get():
        tile, fold = forced
        size = tile.BM // fold
    elif c.rows <= FEW:
        if decode_native(c, options, factor, inner):
            return
        BM, fold, size = tile_of_few(c)
        tile = UNSPLIT._replace(BM=BM)
    else:
        tile = TILES[wide]
        fold = c.group if c.rows < tile.BM and tile.BM % c.group == 0 else 1
        size = tile.BM // fold
    width = constants["BE"] + constants["BEV"]
    stages = stages_of(tile.num_stages, 2 * tile.BM * constants["BE"], 2 * SEGMENT.value * width, c.q.device)
    bulk = tile.BM >= 64 and c.sequences.table is None and in_bulk(c.q.device)
    bulk = bulk and c.mask is None and describable(c.k) and describable(c.v)
    keys = describe(c.k, SEGMENT.value, constants["BE"]) if bulk else c.k
    values = describe(c.v, SEGMENT.value, constants["BEV"]) if bulk else c.v
    launch(
        attention_native_kernel, (c.programs(size, fold),), c.q, c.k, c.v, keys, values, *c.arguments(size), factor,
        inner, DESCRIBED=bulk, FOLD=fold, SIZE=size, BM=tile.BM, num_warps=tile.num_warps, num_stages=stages,
        **constants, **options,
    )  # fmt: skip
