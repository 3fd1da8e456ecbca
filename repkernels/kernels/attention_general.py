"""Attention under `ordered` and `fixed` in any form: tiles of rows, contractions of attention_contraction.py.

Rows of a tile are those of attention_rows.py. With few rows the segments are spread over programs, each of which leaves
(m, l, o) of its segments, and a second kernel merges them in ascending order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.attention import Attention, Sequences
from repkernels.contract import digits_of
from repkernels.kernels.arith import positive_zeros
from repkernels.kernels.attention_contraction import of_rows, of_weights, prepared, rows_at
from repkernels.kernels.attention_rows import sequence, sequence_of
from repkernels.kernels.attention_segments import (
    DENSE,
    PACKED,
    PAGED,
    SEGMENT,
    finished,
    key_places,
    log_sum_exp,
    merged,
    paged_places,
    pages_of,
    ratios,
    seen,
    segments,
    weigh,
)
from repkernels.kernels.configuration import processors
from repkernels.kernels.functions import exp_f32
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded.exponential import tanh
from repkernels.kernels.sizes import cdiv, next_power_of_2

# What a mask holds.
NO_MASK, BOOL_MASK, FLOAT_MASK = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def places_of_keys(
    position, there, offset, batch, b, table, stride_table, stride_b, stride_s, PAGE: tl.constexpr
):
    """(int64 offsets from the head's first element, whether there is a key) of keys at positions."""
    if PAGE == 0:
        places = key_places(position, offset, batch, stride_b, stride_s)
    else:
        page = pages_of(position, there, b, table, stride_table, PAGE)
        there = there & (page >= 0)
        places = paged_places(position, page, stride_b, stride_s, PAGE)
    return places, there


@triton.jit
def scores(x, sees, mask, at, scale, softcap, SOFTCAP: tl.constexpr, MASK: tl.constexpr):
    """(scores, what is seen, tanh of the soft cap) from contractions x. at: int64 offsets of the mask's elements."""
    s = x * scale
    capped = s
    if SOFTCAP:
        capped = tanh(tl.div_rn(s, tl.zeros(s.shape, tl.float32) + softcap))
        s = capped * softcap
    if MASK > 0:
        added = tl.load(mask + at, mask=sees, other=0)
        if MASK == FLOAT_MASK:
            added = added.to(tl.float32)
            s = s + added
            sees = sees & (added != float("-inf"))
        else:
            sees = sees & (added != 0)
    return s, sees, capped


@triton.jit
def with_sink(m, l, o, sink):
    """The state with sinks (M,), merged last; alone where nothing was seen."""
    none = l == 0.0
    top = tl.where(none, sink, tl.maximum(m, sink))
    a = tl.where(none, 0.0, exp_f32(m - top))
    b = tl.where(none, 1.0, exp_f32(sink - top))
    return top, tl.fma(l, a, b), o * a[:, None]


@triton.jit
def store_rows(
    m, l, o, out, lse, sinks, heads, valid, at_out, stride_oe, at_lse, EV: tl.constexpr, SINK: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """Merges the sinks, finishes, and stores rows at the offsets at_out, at_lse (M,)."""
    if SINK:
        m, l, o = with_sink(m, l, o, tl.load(sinks + heads, mask=valid, other=0.0))
    columns = tl.arange(0, o.shape[1])
    y = positive_zeros(finished(o, l), out.dtype.element_ty).to(out.dtype.element_ty)
    at = out + at_out[:, None] + columns.to(tl.int64)[None, :] * stride_oe
    tl.store(at, y, mask=valid[:, None] & (columns < EV)[None, :])
    if LSE:
        tl.store(lse + at_lse, log_sum_exp(m, l, False), mask=valid)


# Sizes and strides that no kernel is compiled anew for.
UNSPECIALISED = ["B", "L", "S", "tiles", "SPLITS", "MOST", "scale", "softcap", "left", "right"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_general_kernel(
    q, k, v, out, lse, part_m, part_l, part_o, mask, sinks, queries, lengths, table, first_key, first_query,
    B, L, S, HQ, HKV, tiles, SPLITS, MOST, scale, softcap, left, right,
    stride_qb, stride_qh, stride_ql, stride_qe, stride_kb, stride_kh, stride_ks, stride_ke,
    stride_vb, stride_vh, stride_vs, stride_ve, stride_ob, stride_oh, stride_ol, stride_oe,
    stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml, stride_mk,
    E: tl.constexpr, EV: tl.constexpr, BE: tl.constexpr, BEV: tl.constexpr, BM: tl.constexpr, FOLD: tl.constexpr,
    DIGITS: tl.constexpr, SLOTS: tl.constexpr, WRITTEN: tl.constexpr, SPLIT: tl.constexpr, LAYOUT: tl.constexpr,
    LENGTH: tl.constexpr, PAGE: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, SINK: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """One tile of BM rows over its segments; SPLIT: over one of SPLITS parts of them.

    part_m, part_l: (batch, L, HQ, MOST), part_o: with EV behind; MOST: the most segments that a sequence has.
    """
    SIZE: tl.constexpr = BM // FOLD
    b, block, tile = sequence_of(tl.program_id(0), queries, tiles, B, HQ // FOLD, SIZE, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    if tile * SIZE < count:
        r = tl.arange(0, BM)
        query, heads = tile * SIZE + r // FOLD, block * FOLD + r % FOLD
        valid = (query < count) & (r < SIZE * FOLD)
        first = start + tile * SIZE
        last = tl.minimum(first + SIZE, start + count) - 1
        begin, whole, whole_end, finish = segments(first, last, low, end, left, right, LEFT, RIGHT)
        if SPLIT:
            per = (finish - begin + SPLITS - 1) // SPLITS
            begin += tl.program_id(1) * per
            finish = tl.minimum(finish, begin + per)

        head = (block * FOLD * HKV) // HQ
        memory, wide_heads, wide = (row + query).to(tl.int64), heads.to(tl.int64), tl.cast(batch, tl.int64)
        columns, columns_v = tl.arange(0, BE), tl.arange(0, BEV)
        q_head = q + wide * stride_qb
        at_q = memory * stride_ql + wide_heads * stride_qh
        digits, e_q, odd_q = prepared(rows_at(q_head, at_q, valid, columns, stride_qe, E), DIGITS, SLOTS)
        k_head, v_head = k + tl.cast(head, tl.int64) * stride_kh, v + tl.cast(head, tl.int64) * stride_vh
        at_mask = wide * stride_mb + memory * stride_ml + wide_heads * stride_mh
        at_part = ((wide * L + memory) * HQ + heads) * MOST - low // SEGMENT

        m = tl.full((BM,), float("-inf"), tl.float32)
        l = tl.zeros((BM,), tl.float32)
        o = tl.zeros((BM, BEV), tl.float32)
        for g in tl.range(begin, finish):
            position = g * SEGMENT + tl.arange(0, SEGMENT)
            at_k, there = places_of_keys(position, (position >= low) & (position < end), offset, batch, b, table,
                                         stride_table, stride_kb, stride_ks, PAGE)  # fmt: skip
            x = of_rows(digits, e_q, odd_q, q_head, at_q, valid, stride_qe, k_head, at_k, there, stride_ke, columns,
                        E, DIGITS, SLOTS, WRITTEN)  # fmt: skip
            sees = seen((start + query)[:, None], position[None, :], low, end, left, right, LEFT, RIGHT)
            sees = sees & valid[:, None] & there[None, :]
            at = at_mask[:, None] + (offset + position).to(tl.int64)[None, :] * stride_mk
            s, sees, capped = scores(x, sees, mask, at, scale, softcap, SOFTCAP, MASK)
            m_seg, p, l_seg = weigh(s, 1.0, sees, False, True)
            at_v, there = places_of_keys(position, there, offset, batch, b, table, stride_table, stride_vb, stride_vs,
                                         PAGE)  # fmt: skip
            o_seg = of_weights(p, sees, v_head, at_v, there, columns_v, stride_ve, EV, DIGITS, SLOTS, WRITTEN)
            if SPLIT:
                tl.store(part_m + at_part + g, m_seg, mask=valid)
                tl.store(part_l + at_part + g, l_seg, mask=valid)
                at = part_o + (at_part + g)[:, None] * EV + columns_v[None, :]
                tl.store(at, o_seg, mask=valid[:, None] & (columns_v < EV)[None, :])
            else:
                m, ratio, ratio_seg = ratios(m, m_seg, l_seg, False, True)
                l = merged(l, l_seg, ratio, ratio_seg)
                o = merged(o, o_seg, ratio[:, None], ratio_seg[:, None])
        if not SPLIT:
            at_out = wide * stride_ob + memory * stride_ol + wide_heads * stride_oh
            at_lse = wide * stride_lb + wide_heads * stride_lh + memory
            store_rows(m, l, o, out, lse, sinks, heads, valid, at_out, stride_oe, at_lse, EV, SINK, LSE)


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_merge_kernel(
    out, lse, part_m, part_l, part_o, sinks, queries, lengths, first_key, first_query,
    B, L, S, HQ, tiles, MOST, left, right, stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh,
    EV: tl.constexpr, BEV: tl.constexpr, LAYOUT: tl.constexpr, LENGTH: tl.constexpr, FIRST_KEY: tl.constexpr,
    FIRST_QUERY: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SINK: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """One row: its segments in ascending order."""
    b, head, query = sequence_of(tl.program_id(0), queries, tiles, B, HQ, 1, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    if query < count:
        begin, whole, whole_end, finish = segments(start + query, start + query, low, end, left, right, LEFT, RIGHT)
        memory, wide = tl.cast(row + query, tl.int64), tl.cast(batch, tl.int64)
        one = tl.arange(0, 1)
        columns = tl.arange(0, BEV)
        at = ((wide * L + memory) * HQ + head) * MOST - low // SEGMENT + one
        m = tl.full((1,), float("-inf"), tl.float32)
        l = tl.zeros((1,), tl.float32)
        o = tl.zeros((1, BEV), tl.float32)
        for g in tl.range(begin, finish, loop_unroll_factor=8):
            m_seg, l_seg = tl.load(part_m + at + g), tl.load(part_l + at + g)
            here = part_o + (at + g)[:, None] * EV + columns[None, :]
            o_seg = tl.load(here, mask=(columns < EV)[None, :], other=0.0)
            m, ratio, ratio_seg = ratios(m, m_seg, l_seg, False, True)
            l = merged(l, l_seg, ratio, ratio_seg)
            o = merged(o, o_seg, ratio[:, None], ratio_seg[:, None])
        heads = head + one
        at_out = wide * stride_ob + memory * stride_ol + heads.to(tl.int64) * stride_oh
        at_lse = wide * stride_lb + heads.to(tl.int64) * stride_lh + memory
        store_rows(m, l, o, out, lse, sinks, heads, one == 0, at_out, stride_oe, at_lse, EV, SINK, LSE)


# Rows of q in all, and elements of partial results, up to which segments are spread over programs.
MOST_ROWS = 4096
MOST_PARTIAL = 2**28


def attention_general(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    sequences: Sequences,
    attention: Attention,
) -> None:
    """Attention of q (B, Hq, L, E) under `ordered` or `fixed` into out, and lse where given; as kernels/attention.py."""
    E, EV = q.shape[3], v.shape[3]
    HQ, HKV, L = q.shape[1], k.shape[1], q.shape[2]
    c = geometry(q, k, sequences, attention)
    S = digits_of(attention.contract)
    few = c["rows"] <= MOST_ROWS
    slots = next_power_of_2(S) if few and S > 0 else 0
    BM = max(16 // max(slots, 1), 8 if S > 1 else 16) if few else 64
    FOLD = folded(HQ // HKV, BM)
    SIZE = BM // FOLD
    tiles = cdiv(L, SIZE) if sequences.queries is None else L // SIZE + c["B"] + 1
    programs = (q.shape[0] if sequences.queries is None else 1) * (HQ // FOLD) * tiles
    most = c["most"]
    splits = 1
    partial = c["rows"] * HQ * most * EV
    if few and partial <= MOST_PARTIAL:
        busy = c["B"] * (HQ // FOLD) * cdiv(c["rows"], c["B"] * SIZE)
        splits = max(1, min(most, cdiv(8 * processors(q.device), busy)))
    split = splits > 1
    part_o = out.new_empty((partial if split else 1,), dtype=torch.float32)
    part_m, part_l = (out.new_empty((c["rows"] * HQ * most if split else 1,), dtype=torch.float32) for _ in range(2))
    common: dict[str, Any] = {
        "EV": EV, "BEV": padded_width(EV), "SINK": sinks is not None, "LSE": lse is not None, **c["constexprs"],
    }  # fmt: skip
    stored = (lse if lse is not None else part_m, part_m, part_l, part_o)
    lse_strides = (lse.stride(0), lse.stride(1)) if lse is not None else (0, 0)
    some_mask, mask_strides, kind = mask_of(mask, out)
    launch(attention_general_kernel, (programs, splits), q, k, v, out, *stored, some_mask, _or(sinks, out),
           *c["tensors"], *c["sizes"], HQ, HKV, tiles, splits, most, attention.scale, attention.softcap, *c["window"],
           *q.stride(), *k.stride(), *v.stride(), *out.stride(), *lse_strides, c["stride_table"], *mask_strides,
           E=E, BE=padded_width(E), BM=BM, FOLD=FOLD, DIGITS=S, SLOTS=slots, WRITTEN=torch.version.hip is not None,
           SPLIT=split, PAGE=c["page"], MASK=kind, SOFTCAP=attention.softcap > 0, num_warps=4,
           num_stages=2 if few else 1, **common)  # fmt: skip
    if split:
        rows = L if sequences.queries is None else L + c["B"] + 1
        programs = (q.shape[0] if sequences.queries is None else 1) * HQ * rows
        queries, lengths, _, first_key, first_query = c["tensors"]
        launch(attention_merge_kernel, (programs,), out, *stored, _or(sinks, out), queries, lengths, first_key,
               first_query, *c["sizes"], HQ, rows, most, *c["window"], *out.stride(), *lse_strides, num_warps=1,
               num_stages=1, **common)  # fmt: skip


def geometry(q: Tensor, k: Tensor, sequences: Sequences, attention: Attention) -> dict[str, Any]:
    """What kernels are told of sequences and the window."""
    dense, paged = sequences.queries is None, sequences.table is not None
    B = q.shape[0] if dense else len(sequences.queries) - 1
    left, right = attention.window
    if attention.causal:
        right = 0
    page = k.shape[2] if paged else 0
    longest = sequences.table.shape[1] * page if paged else k.shape[2]
    return {
        "B": B,
        "rows": q.shape[0] * q.shape[2],
        "most": cdiv(longest, SEGMENT.value) + 1,  # where positions begin within a segment, there is one more
        "page": page,
        "window": (max(left, 0), max(right, 0)),
        "sizes": (B, q.shape[2], k.shape[2]),
        "tensors": tuple(
            _or(x, q)
            for x in (sequences.queries, sequences.keys, sequences.table, sequences.first_key, sequences.first_query)
        ),
        "stride_table": sequences.table.stride(0) if paged else 0,
        "constexprs": {
            "LAYOUT": (DENSE if dense else PAGED if paged else PACKED).value,
            "LENGTH": 1 if dense else next_power_of_2(B + 1),
            "FIRST_KEY": sequences.first_key is not None,
            "FIRST_QUERY": sequences.first_query is not None,
            "LEFT": left >= 0,
            "RIGHT": right >= 0,
        },
    }


def mask_of(mask: Tensor | None, other: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
    """A mask (B, Hq, L, S) as kernels take it: a tensor, its strides, its kind."""
    if mask is None:
        return other, (0, 0, 0, 0), NO_MASK.value
    if mask.dtype == torch.bool:
        return mask.view(torch.uint8), mask.stride(), BOOL_MASK.value
    return mask, mask.stride(), FLOAT_MASK.value


def folded(group: int, rows: int) -> int:
    """The most query heads of a group, a divisor of it, that lie together in a tile of so many rows."""
    return max(n for n in range(1, min(group, rows) + 1) if group % n == 0)


def padded_width(width: int) -> int:
    """The columns of tiles that hold so many."""
    return max(16, next_power_of_2(width))


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x
