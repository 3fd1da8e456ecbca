"""Attention of few query rows (SPEC.md, "Attention"): the keys are spread over programs, a few segments each, whose
states are kept one by one and merged in ascending order by a second kernel, since a merge of merged states would round
otherwise.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.attention_arguments import Call
from repkernels.kernels.attention_native_segment import pages_of_segment, segment_of
from repkernels.kernels.attention_rows import next_pass, rows_of_pass, sequence, sequence_of
from repkernels.kernels.attention_segments import SEGMENT, merged, ratios, reach, segments, store_rows
from repkernels.kernels.attention_tiles import PARTS, stages_of
from repkernels.kernels.configuration import processors
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.overlap import begin
from repkernels.kernels.sizes import cdiv

UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "factor", "inner", "COUNT", "PART"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_parts_kernel(
    q, k, v, parts, sums, out, lse, mask, sinks, queries, lengths, table, first_key, first_query, B, L, S, HQ, HKV,
    tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml,
    stride_mk, left, right, factor, inner, COUNT, PART, E: tl.constexpr, EV: tl.constexpr, LAYOUT: tl.constexpr,
    LENGTH: tl.constexpr, PAGE: tl.constexpr, FOLD: tl.constexpr, SIZE: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    NEGATE: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BM: tl.constexpr,
    BE: tl.constexpr, BEV: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """PART segments of one tile of BM rows, `native`: o into parts (B * L, HQ, COUNT, EV), m and l into sums
    (B * L, HQ, COUNT, 2), counted from the first segment that the tile sees."""
    begin(OVERLAP)
    split = tl.cdiv(COUNT, PART)
    b, block, tile = sequence_of(tl.program_id(0) // split, queries, tiles, B, HQ // FOLD, SIZE, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    r = tl.arange(0, BM)
    query, heads = tile * SIZE + r // FOLD, block * FOLD + r % FOLD
    in_sequence = (query < count) & (r < SIZE * FOLD)
    head = (block * FOLD * HKV) // HQ
    memory = (row + query).to(tl.int64)
    wide = tl.cast(batch, tl.int64)
    k_head, v_head = k + tl.cast(head, tl.int64) * stride_kh, v + tl.cast(head, tl.int64) * stride_vh
    first = start + tile * SIZE
    last = tl.minimum(first + SIZE, start + count) - 1
    all_begin, whole, whole_end, all_finish = segments(first, last, low, end, left, right, LEFT, RIGHT)
    from_ = all_begin + tl.program_id(0) % split * PART
    to = tl.minimum(all_finish, from_ + PART)
    part = ((wide * L + memory) * HQ + heads) * COUNT - all_begin

    # All rows at once, and where that will not do each by itself.
    alone = tile * 0 - 1
    more = (tile * SIZE < count) & (from_ < to)
    while more:
        in_tile, first, last, query_m, head_m = rows_of_pass(alone, tile, start, count, r, block, SIZE, FOLD)
        valid = in_tile & in_sequence
        least, stop = reach(start + query_m, low, end, left, right, LEFT, RIGHT)
        lowest, _ = reach(first, low, end, left, right, LEFT, RIGHT)
        _, highest = reach(last, low, end, left, right, LEFT, RIGHT)
        mask_at = mask + wide * stride_mb + (row + query_m).to(tl.int64) * stride_ml + head_m.to(tl.int64) * stride_mh
        columns, columns_v = tl.arange(0, BE), tl.arange(0, BEV)
        q_at = q + wide * stride_qb + memory * stride_ql + heads.to(tl.int64) * stride_qh
        qq = tl.load(q_at[:, None] + columns[None, :], mask=valid[:, None] & (columns < E)[None, :], other=0.0)
        place = valid[:, None] & (columns_v < EV)[None, :]
        special = tile * 0
        page = pages_of_segment(from_, lowest, highest, b, table, stride_table, PAGE)
        for g in tl.range(from_, to):
            m, l, o, found = segment_of(
                qq, g, page, least, stop, lowest, highest, valid, k_head, v_head, k, v, batch, head, offset,
                stride_kb, stride_ks, stride_vb, stride_vs, mask_at, stride_mk, factor, inner,
                E, EV, PAGE, False, True, not (LEFT or FIRST_KEY), MASK, NEGATE, SOFTCAP, SIZE > 1 or MASK > 0, BE, BEV,
            )  # fmt: skip
            page = pages_of_segment(g + 1, lowest, highest, b, table, stride_table, PAGE)
            tl.store(parts + (part + g)[:, None] * EV + columns_v[None, :], o, mask=place)
            tl.store(sums + (part + g) * 2, m, mask=valid)
            tl.store(sums + (part + g) * 2 + 1, l, mask=valid)
            special = tl.maximum(special, found)
        more = next_pass(alone, special, SIZE * FOLD)
        alone += 1


@triton.jit(do_not_specialize=["B", "L", "S", "tiles", "left", "right", "COUNT"])
def attention_merge_kernel(
    parts, sums, out, lse, sinks, queries, lengths, first_key, first_query, B, L, S, HQ, tiles, stride_ob, stride_oh,
    stride_ol, stride_oe, stride_lb, stride_lh, left, right, COUNT, EV: tl.constexpr, LAYOUT: tl.constexpr,
    LENGTH: tl.constexpr, FOLD: tl.constexpr, SIZE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
    NATIVE: tl.constexpr, BM: tl.constexpr, COLS: tl.constexpr, UNROLL: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Merges the parts of a tile of BM rows, as attention_parts_kernel leaves them, for COLS columns of the result."""
    begin(OVERLAP)
    across = tl.cdiv(EV, COLS)
    b, block, tile = sequence_of(tl.program_id(0) // across, queries, tiles, B, HQ // FOLD, SIZE, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    if tile * SIZE < count:
        r = tl.arange(0, BM)
        query, heads = tile * SIZE + r // FOLD, block * FOLD + r % FOLD
        valid = (query < count) & (r < SIZE * FOLD)
        first = start + tile * SIZE
        last = tl.minimum(first + SIZE, start + count) - 1
        from_, whole, whole_end, to = segments(first, last, low, end, left, right, LEFT, RIGHT)
        memory = (row + query).to(tl.int64)
        wide = tl.cast(batch, tl.int64)
        columns = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
        part = ((wide * L + memory) * HQ + heads) * COUNT
        place = valid[:, None] & (columns < EV)[None, :]
        m = tl.full((BM,), float("-inf"), tl.float32)
        l = tl.zeros((BM,), tl.float32)
        o = tl.zeros((BM, COLS), tl.float32)
        for i in range(0, to - from_, UNROLL):
            # All loads before the first merge.
            tops, totals, outs = (), (), ()
            for j in tl.static_range(UNROLL):
                there = r * 0 + (i + j) < to - from_
                g = part + i + j
                tops = tops + (tl.load(sums + g * 2, mask=valid & there, other=float("-inf")),)
                totals = totals + (tl.load(sums + g * 2 + 1, mask=valid & there, other=0.0),)
                outs = outs + (
                    tl.load(parts + g[:, None] * EV + columns[None, :], mask=place & there[:, None], other=0.0),
                )
            for j in tl.static_range(UNROLL):
                m, x, y = ratios(m, tops[j], totals[j], NATIVE, True)
                l, o = merged(l, totals[j], x, y), merged(o, outs[j], x[:, None], y[:, None])
        out_at = out + wide * stride_ob + memory * stride_ol + heads.to(tl.int64) * stride_oh
        lse_at = lse + wide * stride_lb + heads.to(tl.int64) * stride_lh + memory
        store_rows(m, l, o, valid, out_at, stride_oe, lse_at, sinks, heads, columns, EV, NATIVE, LSE, SINKS)


MOST = 2**28  # bytes of states that are kept at most
COLS = 32  # of a program that merges


class Parts:
    """States of segments, and how they are spread over programs: `part` of them to each.

    size: queries of a tile of BM rows, each in FOLD heads; as many as fit, unless said.
    """

    def __init__(self, c: Call, BM: int, FOLD: int, size: int | None = None) -> None:
        self.c, self.BM, self.FOLD = c, BM, FOLD
        self.size = size or BM // FOLD
        self.count = c.segments(self.size)
        # As many programs as fill the device a few times, were all sequences as long as can be.
        programs = c.programs(self.size, FOLD)
        self.part = max(1, self.count * programs // (4 * processors(c.q.device)))

    @property
    def worth(self) -> bool:
        """Whether more programs are needed than there are tiles, and the states fit."""
        c = self.c
        size = c.out.shape[0] * c.out.shape[1] * c.out.shape[2] * self.count * (c.out.shape[3] + 2) * 4
        return self.part < self.count and size <= MOST

    @property
    def programs(self) -> int:
        return self.c.programs(self.size, self.FOLD) * cdiv(self.count, self.part)

    def empty(self) -> tuple[Tensor, Tensor]:
        """(parts, sums), as attention_parts_kernel fills them."""
        batch, heads, rows, columns = self.c.out.shape
        shape = (batch * rows, heads, self.count)
        made = (self.c.q.new_empty((*shape, n), dtype=torch.float32) for n in (columns, 2))
        parts, sums = made
        return parts, sums

    def merge(self, parts: Tensor, sums: Tensor, native: bool) -> None:
        """Merges the parts into out and lse."""
        c, s = self.c, self.c.sequences
        constants = c.constants()
        kept = ("EV", "LAYOUT", "LENGTH", "LEFT", "RIGHT", "FIRST_KEY", "FIRST_QUERY", "SINKS", "LSE")
        some: Any = [parts if t is None else t for t in (c.lse, c.sinks, s.queries, s.keys, s.first_key, s.first_query)]
        columns = c.out.shape[3]
        overlap = can_overlap(c.q.device)
        launch(
            attention_merge_kernel, (c.programs(self.size, self.FOLD) * cdiv(columns, COLS),), parts, sums, c.out,
            *some, c.batch, c.q.shape[2], c.k.shape[2], c.q.shape[1], c.tiles(self.size), *c.out.stride(),
            *((0, 0) if c.lse is None else c.lse.stride()[:2]), *c.window(), self.count,
            **{name: constants[name] for name in kept}, FOLD=self.FOLD, SIZE=self.size, NATIVE=native,
            BM=self.BM, COLS=COLS, UNROLL=8, OVERLAP=overlap, overlap=overlap, num_warps=4,
        )  # fmt: skip


def tile_of_few(c: Call) -> tuple[int, int, int]:
    """(BM, FOLD, queries) of tiles that hold the few rows of a sequence, a group of heads folded into them if it fits.

    Where a sequence has one row on average a tile takes one: then all its rows see the same keys.
    """
    fold = next(n for n in range(min(c.group, 64), 0, -1) if c.group % n == 0)
    BM = 16
    while BM < min(64, fold * c.rows):
        BM *= 2
    return BM, fold, 1 if c.rows == 1 else BM // fold


def decode_native(c: Call, options: dict[str, Any], factor: float, inner: float) -> bool:
    """Attention of few rows, `native`; False, and nothing done, where there are tiles enough for the device."""
    BM, FOLD, size = tile_of_few(c)
    plan = Parts(c, BM, FOLD, size)
    if not plan.worth:
        return False
    parts, sums = plan.empty()
    constants = c.constants()
    BE, BEV = constants["BE"], constants["BEV"]
    stages = stages_of(PARTS.num_stages, 2 * BM * BE, 2 * SEGMENT.value * (BE + BEV), c.q.device)
    overlap = can_overlap(c.q.device)
    launch(
        attention_parts_kernel, (plan.programs,), c.q, c.k, c.v, parts, sums, *c.arguments(plan.size), factor, inner,
        plan.count, plan.part, **constants, **options, FOLD=FOLD, SIZE=size, BM=BM, OVERLAP=overlap, overlap=overlap,
        num_warps=PARTS.num_warps, num_stages=stages,
    )  # fmt: skip
    plan.merge(parts, sums, True)
    return True
