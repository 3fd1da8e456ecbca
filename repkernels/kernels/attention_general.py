"""Attention under `ordered` and `fixed` in any form: tiles of rows, contractions of attention_contraction.py.

With few rows the segments are spread over programs, and merged as attention_decode.py does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.contract import digits_of
from repkernels.kernels.attention_arguments import Call
from repkernels.kernels.attention_contraction import of_rows, of_weights, prepared, rows_at
from repkernels.kernels.attention_decode import Parts
from repkernels.kernels.attention_rows import sequence, sequence_of
from repkernels.kernels.attention_segments import (
    FLOAT_MASK,
    SEGMENT,
    key_places,
    merged,
    paged_places,
    pages_of,
    ratios,
    reach,
    seen,
    segments,
    store_rows,
    weigh,
)
from repkernels.kernels.configuration import shared_memory
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_hopper import on_hopper
from repkernels.kernels.rounded.exponential import tanh
from repkernels.kernels.sizes import next_power_of_2


@triton.jit
def places_of_keys(position, there, offset, batch, b, table, stride_table, stride_b, stride_s, PAGE: tl.constexpr):
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


NOT_FLAGGED, BY_HEAD, BY_PROGRAM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "scale", "softcap", "COUNT", "PART"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_general_kernel(
    q, k, v, parts, sums, flags, out, lse, mask, sinks, queries, lengths, table, first_key, first_query, B, L, S, HQ,
    HKV, tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml,
    stride_mk, left, right, scale, softcap, COUNT, PART, E: tl.constexpr, EV: tl.constexpr,
    LAYOUT: tl.constexpr, LENGTH: tl.constexpr, PAGE: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr, DIGITS: tl.constexpr, SLOTS: tl.constexpr, WRITTEN: tl.constexpr, SPLIT: tl.constexpr,
    FLAGGED: tl.constexpr,
):  # fmt: skip
    """One tile of BM rows over its segments. SPLIT: over PART of COUNT segments, whose states go into parts and sums as
    attention_decode.py has them. FLAGGED: only where flags say so, (sequences, KV heads) or (programs,)."""
    SIZE: tl.constexpr = BM // FOLD
    split = tl.cdiv(COUNT, PART)
    b, block, tile = sequence_of(tl.program_id(0) // split, queries, tiles, B, HQ // FOLD, SIZE, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    head = (block * FOLD * HKV) // HQ
    wanted = tile * SIZE < count
    if FLAGGED == BY_HEAD:
        wanted = wanted & (tl.load(flags + b * HKV + head) > 0)
    if FLAGGED == BY_PROGRAM:
        wanted = wanted & (tl.load(flags + tl.program_id(0)) > 0)
    if wanted:
        r = tl.arange(0, BM)
        query, heads = tile * SIZE + r // FOLD, block * FOLD + r % FOLD
        valid = (query < count) & (r < SIZE * FOLD)
        first = start + tile * SIZE
        last = tl.minimum(first + SIZE, start + count) - 1
        begin, whole, whole_end, finish = segments(first, last, low, end, left, right, LEFT, RIGHT)
        memory, wide_heads, wide = (row + query).to(tl.int64), heads.to(tl.int64), tl.cast(batch, tl.int64)
        part = ((wide * L + memory) * HQ + heads) * COUNT - begin
        if SPLIT:
            begin += tl.program_id(0) % split * PART
            finish = tl.minimum(finish, begin + PART)

        columns, columns_v = tl.arange(0, BE), tl.arange(0, BEV)
        q_head = q + wide * stride_qb
        at_q = memory * stride_ql + wide_heads * stride_qh
        digits, e_q, odd_q = prepared(rows_at(q_head, at_q, valid, columns, E), DIGITS, SLOTS)
        k_head, v_head = k + tl.cast(head, tl.int64) * stride_kh, v + tl.cast(head, tl.int64) * stride_vh
        at_mask = wide * stride_mb + memory * stride_ml + wide_heads * stride_mh
        least, stop = reach(start + query, low, end, left, right, LEFT, RIGHT)
        m = tl.full((BM,), float("-inf"), tl.float32)
        l = tl.zeros((BM,), tl.float32)
        o = tl.zeros((BM, BEV), tl.float32)
        for g in tl.range(begin, finish):
            position = g * SEGMENT + tl.arange(0, SEGMENT)
            at_k, there = places_of_keys(position, (position >= low) & (position < end), offset, batch, b, table,
                                         stride_table, stride_kb, stride_ks, PAGE)  # fmt: skip
            x = of_rows(digits, e_q, odd_q, q_head, at_q, valid, k_head, at_k, there, columns, E, DIGITS, SLOTS,
                        WRITTEN)  # fmt: skip
            sees = seen(position, least, stop, not (LEFT or FIRST_KEY)) & valid[:, None] & there[None, :]
            at = at_mask[:, None] + (offset + position).to(tl.int64)[None, :] * stride_mk
            s, sees, capped = scores(x, sees, mask, at, scale, softcap, SOFTCAP, MASK)
            m_seg, p, l_seg = weigh(s, 1.0, sees, False, True)
            at_v, there = places_of_keys(position, there, offset, batch, b, table, stride_table, stride_vb, stride_vs,
                                         PAGE)  # fmt: skip
            o_seg = of_weights(p, sees, v_head, at_v, there, columns_v, EV, DIGITS, SLOTS, WRITTEN)
            if SPLIT:
                tl.store(sums + (part + g) * 2, m_seg, mask=valid)
                tl.store(sums + (part + g) * 2 + 1, l_seg, mask=valid)
                at = parts + (part + g)[:, None] * EV + columns_v[None, :]
                tl.store(at, o_seg, mask=valid[:, None] & (columns_v < EV)[None, :])
            else:
                m, ratio, ratio_seg = ratios(m, m_seg, l_seg, False, True)
                l = merged(l, l_seg, ratio, ratio_seg)
                o = merged(o, o_seg, ratio[:, None], ratio_seg[:, None])
        if not SPLIT:
            out_at = out + wide * stride_ob + memory * stride_ol + wide_heads * stride_oh
            lse_at = lse + wide * stride_lb + wide_heads * stride_lh + memory
            store_rows(m, l, o, valid, out_at, stride_oe, lse_at, sinks, heads, columns_v, EV, False, LSE, SINKS)


WIDEST = 256  # head size for which products of digits are exact (kernels/attention_digits.py)
# Bytes of shared memory that the stacked digits of 16 and of 32 rows need.
STACKED_16, STACKED_32 = 81920, 131072
FEW = 16  # query rows of a sequence that are taken to be a decode step


def attention_general(c: Call, flags: Tensor | None = None) -> None:
    """Writes c.out and c.lse, under `ordered` or `fixed`.

    flags: (sequences + 1, KV heads) int32; where given, only the rows of those are written that are set.
    """
    S = digits_of(c.attention.contract)
    check_widths(c)
    few = c.rows <= FEW and flags is None
    BM, room = rows_of_tiles(c, S), shared_memory(c.q.device)
    # Digits of weights that are not stacked Triton 3.6 makes anew for each product, by way of shared memory.
    slots = next_power_of_2(S) if S > 0 and (few or (S > 2 and room >= STACKED_16)) else 0
    if S > 2 and room < STACKED_32:
        BM = 16
    if few:
        BM = min(64 if S in (1, 2) else 16, max(8 if S > 1 else 16, next_power_of_2(c.rows * c.group)))
    FOLD = folded(c.group, BM)
    plan = Parts(c, BM, FOLD)
    split = few and plan.worth
    parts, sums = plan.empty() if split else (c.out, c.out)
    _launch(c, plan, split, parts, sums, flags, NOT_FLAGGED if flags is None else BY_HEAD, slots)
    if split:
        plan.merge(parts, sums, False)


def check_widths(c: Call) -> None:
    """Raises where sums of digit products might not be exact."""
    E = max(c.q.shape[3], c.v.shape[3])
    if E > WIDEST and c.attention.contract != "ordered":
        raise NotImplementedError(f"contract: {c.attention.contract} takes heads of up to {WIDEST} on a GPU, got {E}")


def attention_general_again(c: Call, plan: Parts, parts: Tensor, sums: Tensor, flags: Tensor) -> None:
    """What those programs of `plan` were to write that are set in flags, to parts and sums or, with all segments in
    each, to c.out and c.lse."""
    slots = next_power_of_2(digits_of(c.attention.contract))
    _launch(c, plan, plan.part < plan.count, parts, sums, flags, BY_PROGRAM, slots)


def _launch(
    c: Call, plan: Parts, split: bool, parts: Tensor, sums: Tensor, flags: Tensor | None, FLAGGED: tl.constexpr,
    slots: int,
) -> None:  # fmt: skip
    launch(
        attention_general_kernel, (plan.programs if split else c.programs(plan.size, plan.FOLD),), c.q, c.k, c.v,
        parts, sums, c.out if flags is None else flags, *c.arguments(plan.size), c.attention.scale,
        c.attention.softcap, plan.count, plan.part if split else plan.count, **c.constants(), FOLD=plan.FOLD,
        BM=plan.BM, DIGITS=digits_of(c.attention.contract), SLOTS=slots, WRITTEN=torch.version.hip is not None,
        SPLIT=split, FLAGGED=FLAGGED.value, num_warps=8, num_stages=1,
    )  # fmt: skip


def rows_of_tiles(c: Call, S: int) -> int:
    """Rows of a tile where there are many: as many as shared memory holds digits of.

    Elsewhere than on Hopper, warps beside one another would each compute all weights of such a row.
    """
    wide = max(c.q.shape[3], c.v.shape[3]) > 128
    return 64 if S in (1, 2) and not wide and on_hopper(c.q.device) else 32


def folded(group: int, rows: int) -> int:
    """The most query heads of a group, a divisor of it, that lie together in a tile of so many rows."""
    return max(n for n in range(1, min(group, rows) + 1) if group % n == 0)
