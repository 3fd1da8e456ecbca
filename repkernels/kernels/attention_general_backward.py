"""Gradients of attention under `ordered` and `fixed` (SPEC.md, "Attention"): no atomics, every sum in one order.

One kernel goes over the keys of a tile of queries, for those queries' gradient; another over the queries that see a
tile of keys, for those keys' and values' gradients.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.contract import digits_of
from repkernels.kernels.arith import positive_zeros
from repkernels.kernels.attention_arguments import Call
from repkernels.kernels.attention_contraction import of_rows, of_weights, prepared, rows_at
from repkernels.kernels.attention_delta import delta
from repkernels.kernels.attention_general import check_widths, folded, rows_of_tiles, scores
from repkernels.kernels.attention_rows import sequence, sequence_of
from repkernels.kernels.attention_segments import DENSE, SEGMENT, key_places, reach, seen, segments
from repkernels.kernels.functions import exp_f32
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv


@triton.jit
def score_gradients(s, sees, capped, products, lse, delta, SOFTCAP: tl.constexpr):
    """(P, dS of the masked scores, dS before the soft cap), +0 where not `sees`. lse, delta: broadcast to s."""
    below = s - lse
    p = tl.where(sees, exp_f32(tl.where(below > 0, 0.0, below)), 0.0)
    after = tl.where(sees, p * (products - delta), 0.0)
    before = after
    if SOFTCAP:
        before = tl.where(sees, after * (1.0 - capped * capped), 0.0)
    return p, after, before


UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "scale", "softcap", "key_tiles"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_queries_backward_kernel(
    q, k, v, grad, d, grad_q, grad_scores, out, lse, mask, sinks, queries, lengths, table, first_key, first_query,
    B, L, S, HQ, HKV, tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh,
    stride_vs, stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb, stride_mh,
    stride_ml, stride_mk, left, right, scale, softcap, stride_gb, stride_gh, stride_gl, stride_dqb, stride_dqh,
    stride_dql, stride_dqe, E: tl.constexpr, EV: tl.constexpr,
    LAYOUT: tl.constexpr, LENGTH: tl.constexpr, PAGE: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr, DIGITS: tl.constexpr, WRITTEN: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of BM rows of q; SCORES: and of their masked scores, (B, HQ, L, S)."""
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
        head = (block * FOLD * HKV) // HQ
        memory, wide_heads, wide = (row + query).to(tl.int64), heads.to(tl.int64), tl.cast(batch, tl.int64)
        columns, columns_v = tl.arange(0, BE), tl.arange(0, BEV)
        q_head, g_head = q + wide * stride_qb, grad + wide * stride_gb
        at_q = memory * stride_ql + wide_heads * stride_qh
        at_g = memory * stride_gl + wide_heads * stride_gh
        q_digits, e_q, odd_q = prepared(rows_at(q_head, at_q, valid, columns, E), DIGITS, 0)
        g_digits, e_g, odd_g = prepared(rows_at(g_head, at_g, valid, columns_v, EV), DIGITS, 0)
        k_head, v_head = k + tl.cast(head, tl.int64) * stride_kh, v + tl.cast(head, tl.int64) * stride_vh
        at_mask = wide * stride_mb + memory * stride_ml + wide_heads * stride_mh
        at_row = (wide * HQ + wide_heads) * L + memory
        lse_row = tl.load(lse + wide * stride_lb + wide_heads * stride_lh + memory, mask=valid, other=0.0)
        delta_row = tl.load(d + at_row, mask=valid, other=0.0)
        least, stop = reach(start + query, low, end, left, right, LEFT, RIGHT)
        total = tl.zeros((BM, BE), tl.float32)
        for g in tl.range(begin, finish):
            position = g * SEGMENT + tl.arange(0, SEGMENT)
            there = (position >= low) & (position < end)
            at_k = key_places(position, offset, batch, stride_kb, stride_ks)
            at_v = key_places(position, offset, batch, stride_vb, stride_vs)
            x = of_rows(q_digits, e_q, odd_q, q_head, at_q, valid, k_head, at_k, there, columns, E, DIGITS, 0,
                        WRITTEN)  # fmt: skip
            sees = seen(position, least, stop, not (LEFT or FIRST_KEY)) & valid[:, None] & there[None, :]
            index = (offset + position).to(tl.int64)
            at = at_mask[:, None] + index[None, :] * stride_mk
            s, sees, capped = scores(x, sees, mask, at, scale, softcap, SOFTCAP, MASK)
            y = of_rows(g_digits, e_g, odd_g, g_head, at_g, valid, v_head, at_v, there, columns_v, EV, DIGITS, 0,
                        WRITTEN)  # fmt: skip
            p, after, before = score_gradients(s, sees, capped, y, lse_row[:, None], delta_row[:, None], SOFTCAP)
            # Or the digits of k would be kept until they are multiplied again, and shared memory would not hold them.
            tl.debug_barrier()
            if SCORES:
                at = grad_scores + at_row[:, None] * S + index[None, :]
                tl.store(at, after, mask=valid[:, None] & there[None, :])
            total += of_weights(before, sees, k_head, at_k, there, columns, E, DIGITS, 0, WRITTEN)
        at = memory * stride_dql + wide_heads * stride_dqh + wide * stride_dqb
        y = positive_zeros(total * scale, grad_q.dtype.element_ty).to(grad_q.dtype.element_ty)
        tl.store(grad_q + at[:, None] + columns[None, :] * stride_dqe, y,
                 mask=valid[:, None] & (columns < E)[None, :])  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_keys_backward_kernel(
    q, k, v, grad, d, grad_k, grad_v, key_tiles, out, lse, mask, sinks, queries, lengths, table, first_key,
    first_query, B, L, S, HQ, HKV, tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb,
    stride_vh, stride_vs, stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb,
    stride_mh, stride_ml, stride_mk, left, right, scale, softcap, stride_gb, stride_gh, stride_gl, stride_dkb,
    stride_dkh, stride_dks, stride_dke, stride_dvb, stride_dvh, stride_dvs, stride_dve,
    E: tl.constexpr, EV: tl.constexpr,
    LAYOUT: tl.constexpr, LENGTH: tl.constexpr, PAGE: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr, DIGITS: tl.constexpr, WRITTEN: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of BN keys and values: heads of the group ascending, in them segments of queries."""
    b, head, tile = sequence_of(tl.program_id(0), lengths, key_tiles, B, HKV, BN, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    # Places in memory, from the first key of the sequence on; those after the last sequence see nobody.
    here = tile * BN + tl.arange(0, BN)
    if LAYOUT == DENSE:
        size = S
        position = here - offset
    else:
        size = tl.where(b == B, S - offset, end)
        position = here
    present = here < size
    there = present & (position >= low) & (position < end)
    if tile * BN < size:
        wide, wide_head = tl.cast(batch, tl.int64), tl.cast(head, tl.int64)
        columns, columns_v = tl.arange(0, BE), tl.arange(0, BEV)
        k_head, v_head = k + wide_head * stride_kh, v + wide_head * stride_vh
        at_k = key_places(position, offset, batch, stride_kb, stride_ks)
        at_v = key_places(position, offset, batch, stride_vb, stride_vs)
        k_digits, e_k, odd_k = prepared(rows_at(k_head, at_k, there, columns, E), DIGITS, 0)
        v_digits, e_v, odd_v = prepared(rows_at(v_head, at_v, there, columns_v, EV), DIGITS, 0)
        # Queries that can see any of these keys.
        lowest = tl.max(position, 0) - BN + 1
        from_ = tl.maximum(start, lowest - right) if RIGHT else start
        to = tl.minimum(start + count, lowest + BN + left) if LEFT else start + count
        total_k = tl.zeros((BN, BE), tl.float32)
        total_v = tl.zeros((BN, BEV), tl.float32)
        for n in range(HQ // HKV):
            h = tl.cast(head * (HQ // HKV) + n, tl.int64)
            for g in tl.range(from_ >> 7, (to + 127) >> 7):
                at_query = g * SEGMENT + tl.arange(0, SEGMENT)
                valid = (at_query >= start) & (at_query < start + count)
                memory = (row + at_query - start).to(tl.int64)
                q_head, g_head = q + wide * stride_qb + h * stride_qh, grad + wide * stride_gb + h * stride_gh
                at_q, at_g = memory * stride_ql, memory * stride_gl
                x = of_rows(k_digits, e_k, odd_k, k_head, at_k, there, q_head, at_q, valid, columns, E, DIGITS, 0,
                            WRITTEN)  # fmt: skip
                least, stop = reach(at_query, low, end, left, right, LEFT, RIGHT)
                sees = (position[:, None] < stop[None, :]) & (position[:, None] >= least[None, :])
                sees = sees & valid[None, :] & there[:, None]
                at = (offset + position).to(tl.int64)[:, None] * stride_mk + (memory * stride_ml)[None, :]
                at += wide * stride_mb + h * stride_mh
                s, sees, capped = scores(x, sees, mask, at, scale, softcap, SOFTCAP, MASK)
                y = of_rows(v_digits, e_v, odd_v, v_head, at_v, there, g_head, at_g, valid, columns_v, EV, DIGITS, 0,
                            WRITTEN)  # fmt: skip
                lse_row = tl.load(lse + wide * stride_lb + h * stride_lh + memory, mask=valid, other=0.0)
                delta_row = tl.load(d + (wide * HQ + h) * L + memory, mask=valid, other=0.0)
                p, after, before = score_gradients(s, sees, capped, y, lse_row[None, :], delta_row[None, :], SOFTCAP)
                # As with the digits of k above.
                tl.debug_barrier()
                total_k += of_weights(before, sees, q_head, at_q, valid, columns, E, DIGITS, 0, WRITTEN)
                total_v += of_weights(p, sees, g_head, at_g, valid, columns_v, EV, DIGITS, 0, WRITTEN)
        place = key_places(position, offset, batch, stride_dkb, stride_dks) + wide_head * stride_dkh
        y = positive_zeros(total_k * scale, grad_k.dtype.element_ty).to(grad_k.dtype.element_ty)
        tl.store(grad_k + place[:, None] + columns[None, :] * stride_dke, y,
                 mask=present[:, None] & (columns < E)[None, :])  # fmt: skip
        place = key_places(position, offset, batch, stride_dvb, stride_dvs) + wide_head * stride_dvh
        y = positive_zeros(total_v, grad_v.dtype.element_ty).to(grad_v.dtype.element_ty)
        tl.store(grad_v + place[:, None] + columns_v[None, :] * stride_dve, y,
                 mask=present[:, None] & (columns_v < EV)[None, :])  # fmt: skip


class Gradients(NamedTuple):
    """That of the result, and those to be written: of q, k, v, and of the masked scores (B, Hq, L, S) where wanted."""

    out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor | None


def attention_general_backward(c: Call, gradients: Gradients) -> None:
    """Writes the gradients under `ordered` or `fixed`; c.lse and c.out are the forward pass's results."""
    grad = gradients.out if gradients.out.stride(3) == 1 else gradients.out.contiguous()
    check_widths(c)
    S = digits_of(c.attention.contract)
    d = grad.new_empty(c.out.shape[:3], dtype=torch.float32)
    delta(grad, c.out, d)
    constants: dict[str, Any] = c.constants() | {"DIGITS": S, "WRITTEN": torch.version.hip is not None}
    BM = rows_of_tiles(c, S)
    FOLD = folded(c.group, BM) if c.rows < BM else 1
    options = (c.attention.scale, c.attention.softcap, *grad.stride()[:3])
    if gradients.scores is not None:
        gradients.scores.zero_()
    launch(
        attention_queries_backward_kernel, (c.programs(BM // FOLD, FOLD),), c.q, c.k, c.v, grad, d, gradients.q,
        d if gradients.scores is None else gradients.scores, *c.arguments(BM // FOLD), *options,
        *gradients.q.stride(), FOLD=FOLD, BM=BM, SCORES=gradients.scores is not None, num_warps=8, num_stages=1,
        **constants,
    )  # fmt: skip
    dense, size = c.sequences.queries is None, c.k.shape[2]
    key_tiles = cdiv(size, BM) if dense else size // BM + c.batch + 1
    programs = key_tiles * c.k.shape[1] * (c.batch if dense else 1)
    launch(
        attention_keys_backward_kernel, (programs,), c.q, c.k, c.v, grad, d, gradients.k, gradients.v, key_tiles,
        *c.arguments(BM), *options, *gradients.k.stride(), *gradients.v.stride(), BN=BM, num_warps=8, num_stages=1,
        **constants,
    )  # fmt: skip
