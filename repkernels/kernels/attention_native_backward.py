"""Gradients of `native` attention (SPEC.md, "Attention", "Gradients", "native"): a kernel for dQ, one for dK and dV.

Scores are computed anew in both, so that every sum stays in one program, in its order; nothing is added atomically.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from repkernels.kernels.attention_arguments import Call, describable, describe, in_bulk, to_base_2
from repkernels.kernels.attention_delta import delta
from repkernels.kernels.attention_native_segment import holds_special, scores
from repkernels.kernels.attention_rows import next_pass, rows_of_pass, sequence, sequence_of
from repkernels.kernels.attention_segments import FLOAT_MASK, LOG2_E, positive, reach, seen, segments
from repkernels.kernels.attention_tiles import KEY_GRADIENT, QUERY_GRADIENT, stages_of
from repkernels.kernels.launch import launch


@triton.jit
def weights_of(x, lse, factor, shift, MASK: tl.constexpr):
    """P of contractions x, both (rows, keys) or both the other way; lse to base 2, shaped to x."""
    if MASK == FLOAT_MASK:
        z = tl.fma(x, factor, shift * LOG2_E) - lse
    else:
        z = tl.fma(x, factor, lse * -1.0)
    return tl.math.exp2(tl.where(z > 0.0, 0.0, z))


@triton.jit
def query_gradient_of(
    dq, q, do, lse, d, g, least, stop, lowest, highest, valid, k, v, keys, values, batch, head, offset, stride_ks,
    stride_vs, mask, stride_mk, ds_at, factor, inner, E: tl.constexpr, EV: tl.constexpr, DESCRIBED: tl.constexpr,
    MASKED: tl.constexpr, ALL: tl.constexpr, MASK: tl.constexpr, NEGATE: tl.constexpr, SOFTCAP: tl.constexpr,
    DIFFER: tl.constexpr, SCORES: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr, BEV: tl.constexpr,
):  # fmt: skip
    """(dq, special) with BN keys more, as attention_native_segment.segment_of has them."""
    position = g * BN + tl.arange(0, BN)
    there = position >= 0
    sees = position[None, :] >= 0
    if DESCRIBED and not MASKED:
        kk = keys.load([batch, head, offset + g * BN, 0]).reshape(BN, BE)
        vv = values.load([batch, head, offset + g * BN, 0]).reshape(BN, BEV)
    else:
        there = (position >= lowest) & (position < highest)
        ke, ve = tl.arange(0, BE), tl.arange(0, BEV)
        memory = (offset + position).to(tl.int64)[:, None]
        kk = tl.load(k + memory * stride_ks + ke[None, :], mask=there[:, None] & (ke < E)[None, :], other=0.0)
        vv = tl.load(v + memory * stride_vs + ve[None, :], mask=there[:, None] & (ve < EV)[None, :], other=0.0)
        sees = seen(position, least, stop, ALL)
    x = scores(tl.dot(q, tl.trans(kk)), factor, inner, NEGATE, SOFTCAP)
    shift = 0.0
    if MASK:
        mask_at = mask[:, None] + ((offset + position).to(tl.int64) * stride_mk)[None, :]
        shift = tl.load(mask_at, mask=valid[:, None] & there[None, :], other=0)
        if MASK == FLOAT_MASK:
            shift = shift.to(tl.float32)
            sees = sees & (shift != float("-inf"))
        else:
            sees = sees & (shift != 0)
        if MASKED:
            by_any = tl.max(sees.to(tl.int32), 0) > 0
            kk = tl.where(by_any[:, None], kk, tl.zeros_like(kk))
    p = weights_of(x, lse[:, None], factor, shift, MASK)
    ds = p * (tl.dot(do, tl.trans(vv)) - d[:, None])
    if MASKED:
        ds = tl.where(sees, ds, 0.0)
    if SCORES:
        place = valid[:, None] & there[None, :]
        tl.store(ds_at[:, None] + (offset + position)[None, :], ds, mask=place)
    if SOFTCAP:
        ds = ds * (1.0 - x * x)
    special = 0
    if DIFFER and MASKED:
        special = holds_special(kk)
    return tl.dot(ds.to(kk.dtype), kk, dq), special


UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "factor", "inner", "scale"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_native_query_gradient_kernel(
    q, k, v, keys, values, do, d, dq, ds, stride_gb, stride_gh, stride_gl, stride_dqb, stride_dqh, stride_dql, scale,
    out, lse, mask, sinks, queries, lengths, table, first_key, first_query, B, L, S, HQ, HKV,
    tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml,
    stride_mk, left, right, factor, inner, E: tl.constexpr, EV: tl.constexpr, LAYOUT: tl.constexpr,
    LENGTH: tl.constexpr, PAGE: tl.constexpr, DESCRIBED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr, NEGATE: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, SCORES: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BE: tl.constexpr, BEV: tl.constexpr,
):  # fmt: skip
    """dQ of a tile of BM queries of a head: one accumulation over its keys, BN at a time. d: D, laid out as lse.
    ds: the gradient of the scores, (B, HQ, L, S), if SCORES."""
    b, h, tile = sequence_of(tl.program_id(0), queries, tiles, B, HQ, BM, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    ALL: tl.constexpr = not (LEFT or FIRST_KEY)
    r = tl.arange(0, BM)
    query = tile * BM + r
    memory = (row + query).to(tl.int64)
    wide, far = tl.cast(batch, tl.int64), tl.cast(h, tl.int64)
    head = (h * HKV) // HQ
    k_head = k + wide * stride_kb + tl.cast(head, tl.int64) * stride_kh
    v_head = v + wide * stride_vb + tl.cast(head, tl.int64) * stride_vh
    q_at = q + wide * stride_qb + far * stride_qh + memory * stride_ql
    do_at = do + wide * stride_gb + far * stride_gh + memory * stride_gl
    lse_at = wide * stride_lb + far * stride_lh + memory
    ds_at = ds + ((wide * HQ + far) * L + memory) * S

    # All rows at once, and where that will not do each by itself.
    alone = tile * 0 - 1
    more = tile * BM < count
    while more:
        in_tile, first, last, query_m, _ = rows_of_pass(alone, tile, start, count, r, h, BM, 1)
        valid = in_tile & (query < count)
        begin, whole, whole_end, finish = segments(first, last, low, end, left, right, LEFT, RIGHT, BN)
        if MASK:
            whole, whole_end = begin, begin
        least, stop = reach(start + query_m, low, end, left, right, LEFT, RIGHT)
        lowest, _ = reach(first, low, end, left, right, LEFT, RIGHT)
        _, highest = reach(last, low, end, left, right, LEFT, RIGHT)
        mask_at = mask + wide * stride_mb + far * stride_mh + (row + query_m).to(tl.int64) * stride_ml
        e, ev = tl.arange(0, BE), tl.arange(0, BEV)
        qq = tl.load(q_at[:, None] + e[None, :], mask=valid[:, None] & (e < E)[None, :], other=0.0)
        dd = tl.load(do_at[:, None] + ev[None, :], mask=valid[:, None] & (ev < EV)[None, :], other=0.0)
        lse_2 = tl.load(lse + lse_at, mask=valid, other=0.0) * LOG2_E
        delta = tl.load(d + lse_at, mask=valid, other=0.0)
        acc = tl.zeros((BM, BE), tl.float32)
        special = tile * 0
        if LEFT or FIRST_KEY:
            for g in tl.range(begin, whole, num_stages=1):
                acc, found = query_gradient_of(
                    acc, qq, dd, lse_2, delta, g, least, stop, lowest, highest, valid, k_head, v_head, keys, values,
                    batch, head, offset, stride_ks, stride_vs, mask_at, stride_mk, ds_at, factor, inner, E, EV,
                    DESCRIBED, True, ALL, MASK, NEGATE, SOFTCAP, BM > 1, SCORES, BN, BE, BEV,
                )  # fmt: skip
                special = tl.maximum(special, found)
        if not MASK:
            for g in tl.range(whole, whole_end):
                acc, found = query_gradient_of(
                    acc, qq, dd, lse_2, delta, g, least, stop, lowest, highest, valid, k_head, v_head, keys, values,
                    batch, head, offset, stride_ks, stride_vs, mask_at, stride_mk, ds_at, factor, inner, E, EV,
                    DESCRIBED, not DESCRIBED, ALL, MASK, NEGATE, SOFTCAP, False, SCORES, BN, BE, BEV,
                )  # fmt: skip
        for g in tl.range(whole_end, finish, num_stages=1):
            acc, found = query_gradient_of(
                acc, qq, dd, lse_2, delta, g, least, stop, lowest, highest, valid, k_head, v_head, keys, values,
                batch, head, offset, stride_ks, stride_vs, mask_at, stride_mk, ds_at, factor, inner, E, EV,
                DESCRIBED, True, ALL, MASK, NEGATE, SOFTCAP, BM > 1, SCORES, BN, BE, BEV,
            )  # fmt: skip
            special = tl.maximum(special, found)
        dq_at = dq + wide * stride_dqb + far * stride_dqh + memory * stride_dql
        y = positive(acc * scale, dq.dtype.element_ty)
        tl.store(dq_at[:, None] + e[None, :], y, mask=valid[:, None] & (e < E)[None, :])
        more = next_pass(alone, special, BM)
        alone += 1


@triton.jit
def key_gradient_of(
    dk, dv, k, v, u, key, low_key, end_key, start, row, lowest, highest, batch, h, q, do, qs, dos, stride_ql, stride_gl,
    lse, d, lses, ds, lse_at, mask, stride_ml, left, right, factor, inner, E: tl.constexpr, EV: tl.constexpr,
    DESCRIBED: tl.constexpr, MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr,
    NEGATE: tl.constexpr, SOFTCAP: tl.constexpr, DIFFER: tl.constexpr, SUMS: tl.constexpr, BM: tl.constexpr,
    BE: tl.constexpr, BEV: tl.constexpr,
):  # fmt: skip
    """(dk, dv, special) with the queries of a head at positions from u on, BM of them.

    key: positions of the keys (BN,), there if from low_key to end_key. lowest, highest: no key is seen from positions
    below or from there on. lse_at: offset of the first query's LSE and D; lses, ds: descriptors of all, if SUMS. mask:
    (BN,) pointers to the columns of the mask. special: as in segment_of, of q and dO.
    """
    position = u + tl.arange(0, BM)
    query = position - start
    sees = key[:, None] >= 0
    there = position >= lowest
    if DESCRIBED and not MASKED:
        qq = qs.load([batch, h, row + u - start, 0]).reshape(BM, BE)
        dd = dos.load([batch, h, row + u - start, 0]).reshape(BM, BEV)
        if SUMS:
            lse_2 = lses.load([(lse_at + u - start).to(tl.int32)])
            delta = ds.load([(lse_at + u - start).to(tl.int32)])
        else:
            lse_2 = tl.load(lse + lse_at + query)
            delta = tl.load(d + lse_at + query)
    else:
        there = (position >= lowest) & (position < highest)
        e, ev = tl.arange(0, BE), tl.arange(0, BEV)
        memory = (row + query).to(tl.int64)[:, None]
        qq = tl.load(q + memory * stride_ql + e[None, :], mask=there[:, None] & (e < E)[None, :], other=0.0)
        dd = tl.load(do + memory * stride_gl + ev[None, :], mask=there[:, None] & (ev < EV)[None, :], other=0.0)
        lse_2 = tl.load(lse + lse_at + query, mask=there, other=0.0)
        delta = tl.load(d + lse_at + query, mask=there, other=0.0)
        sees = ((key >= low_key) & (key < end_key))[:, None] & there[None, :]
        if LEFT:
            sees = sees & (key[:, None] >= (position - left)[None, :])
        if RIGHT:
            sees = sees & (key[:, None] <= (position + right)[None, :])
    x = scores(tl.dot(k, tl.trans(qq)), factor, inner, NEGATE, SOFTCAP)
    shift = 0.0
    if MASK:
        mask_at = mask[:, None] + ((row + query).to(tl.int64) * stride_ml)[None, :]
        shift = tl.load(mask_at, mask=sees, other=0)
        if MASK == FLOAT_MASK:
            shift = shift.to(tl.float32)
            sees = sees & (shift != float("-inf"))
        else:
            sees = sees & (shift != 0)
        if MASKED:
            by_any = tl.max(sees.to(tl.int32), 0) > 0
            qq = tl.where(by_any[:, None], qq, tl.zeros_like(qq))
            dd = tl.where(by_any[:, None], dd, tl.zeros_like(dd))
    p = weights_of(x, (lse_2 * LOG2_E)[None, :], factor, shift, MASK)
    if MASKED:
        p = tl.where(sees, p, 0.0)
    dv = tl.dot(p.to(dd.dtype), dd, dv)
    ds = p * (tl.dot(v, tl.trans(dd)) - delta[None, :])
    if MASKED:
        ds = tl.where(sees, ds, 0.0)
    if SOFTCAP:
        ds = ds * (1.0 - x * x)
    special = 0
    if DIFFER and MASKED:
        special = tl.maximum(holds_special(qq), holds_special(dd))
    return tl.dot(ds.to(qq.dtype), qq, dk), dv, special


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_native_key_gradient_kernel(
    q, k, v, qs, dos, lses, ds, do, d, dk, dv, stride_gb, stride_gh, stride_gl, stride_dkb, stride_dkh, stride_dks,
    stride_dvb, stride_dvh, stride_dvs, scale, key_tiles, out, lse, mask, sinks, queries, lengths, table, first_key,
    first_query, B, L, S, HQ, HKV, tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb,
    stride_vh, stride_vs, stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb,
    stride_mh, stride_ml, stride_mk, left, right, factor, inner, E: tl.constexpr, EV: tl.constexpr,
    LAYOUT: tl.constexpr, LENGTH: tl.constexpr, PAGE: tl.constexpr, DESCRIBED: tl.constexpr, SUMS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    NEGATE: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BE: tl.constexpr, BEV: tl.constexpr,
):  # fmt: skip
    """dK and dV of a tile of BN keys, as they lie in memory: one accumulation each over the query heads of the group
    and their queries, BM at a time, at positions that are multiples of BM."""
    b, head, tile = sequence_of(tl.program_id(0), lengths, key_tiles, B, HKV, BN, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    if LAYOUT == 0:
        # The first keys are seen by most under a causal mask.
        tile = key_tiles - 1 - tile
        index, size = tile * BN + tl.arange(0, BN), S
    else:
        # Keys after the last sequence have gradients too: zeros.
        size = tl.where(b == B, S - offset, end)
        index = offset + tile * BN + tl.arange(0, BN)
        size = offset + size
    c = tl.arange(0, BN)
    e, ev = tl.arange(0, BE), tl.arange(0, BEV)
    wide, far = tl.cast(batch, tl.int64), tl.cast(head, tl.int64)
    memory = index.to(tl.int64)
    h_begin, h_end = tl.cdiv(head * HQ, HKV), tl.cdiv((head + 1) * HQ, HKV)
    k_at = k + wide * stride_kb + far * stride_kh + memory * stride_ks
    v_at = v + wide * stride_vb + far * stride_vh + memory * stride_vs

    # All keys at once, and where that will not do each by itself.
    alone = tile * 0 - 1
    more = tl.min(index, 0) < size
    while more:
        together = alone < 0
        valid = tl.where(together, c >= 0, c == alone) & (index < size)
        key = tl.where(together, index, tl.min(index, 0) + alone) - offset
        first = tl.maximum(tl.min(key, 0), low)
        last = tl.minimum(tl.max(key, 0), end - 1)
        entire = (tl.min(key, 0) >= low) & (tl.max(key, 0) < end)
        # Positions of queries that see a key of the tile, and of those that see all.
        lowest, highest = start, start + count
        lowest_whole, highest_whole = lowest, highest
        if RIGHT:
            lowest, lowest_whole = tl.maximum(lowest, first - right), tl.maximum(lowest_whole, last - right)
        if LEFT:
            highest = tl.minimum(highest, last + left + 1)
            highest_whole = tl.minimum(highest_whole, first + left + 1)
        highest = tl.where(first <= last, tl.maximum(highest, lowest), lowest)
        begin = lowest & -BM
        finish = tl.where(highest > lowest, (highest + BM - 1) & -BM, begin)
        whole = tl.minimum(tl.maximum((lowest_whole + BM - 1) & -BM, begin), finish)
        whole_end = tl.maximum(tl.minimum(highest_whole & -BM, finish), whole)
        if MASK:
            whole, whole_end = begin, begin
        else:
            whole, whole_end = tl.where(entire, whole, begin), tl.where(entire, whole_end, begin)
        kk = tl.load(k_at[:, None] + e[None, :], mask=valid[:, None] & (e < E)[None, :], other=0.0)
        vv = tl.load(v_at[:, None] + ev[None, :], mask=valid[:, None] & (ev < EV)[None, :], other=0.0)
        dk_acc, dv_acc = tl.zeros((BN, BE), tl.float32), tl.zeros((BN, BEV), tl.float32)
        special = tile * 0
        # Of each head those queries from begin to whole, from there to whole_end, from there to finish.
        for i in range(2 * h_begin, 2 * h_end):
            h = i // 2
            front = i % 2 == 0
            q_head = q + wide * stride_qb + tl.cast(h, tl.int64) * stride_qh
            do_head = do + wide * stride_gb + tl.cast(h, tl.int64) * stride_gh
            lse_at = wide * stride_lb + tl.cast(h, tl.int64) * stride_lh + row
            mask_at = mask + wide * stride_mb + tl.cast(h, tl.int64) * stride_mh
            mask_at += (key + offset).to(tl.int64) * stride_mk
            for u in tl.range(tl.where(front, begin, whole_end), tl.where(front, whole, finish), BM, num_stages=1):
                dk_acc, dv_acc, found = key_gradient_of(
                    dk_acc, dv_acc, kk, vv, u, key, low, end, start, row, lowest, highest, batch, h, q_head, do_head,
                    qs, dos, stride_ql, stride_gl, lse, d, lses, ds, lse_at, mask_at, stride_ml, left, right, factor,
                    inner, E, EV, DESCRIBED, True, LEFT, RIGHT, MASK, NEGATE, SOFTCAP, True, SUMS, BM, BE, BEV,
                )  # fmt: skip
                special = tl.maximum(special, found)
            if not MASK:
                for u in tl.range(whole, tl.where(front, whole_end, whole), BM):
                    dk_acc, dv_acc, found = key_gradient_of(
                        dk_acc, dv_acc, kk, vv, u, key, low, end, start, row, lowest, highest, batch, h, q_head,
                        do_head, qs, dos, stride_ql, stride_gl, lse, d, lses, ds, lse_at, mask_at, stride_ml, left,
                        right, factor, inner, E, EV, DESCRIBED, not DESCRIBED, LEFT, RIGHT, MASK, NEGATE, SOFTCAP,
                        False, SUMS, BM, BE, BEV,
                    )  # fmt: skip
        dk_at = dk + wide * stride_dkb + far * stride_dkh + memory * stride_dks
        dv_at = dv + wide * stride_dvb + far * stride_dvh + memory * stride_dvs
        y = positive(dk_acc * scale, dk.dtype.element_ty)
        tl.store(dk_at[:, None] + e[None, :], y, mask=valid[:, None] & (e < E)[None, :])
        y = positive(dv_acc, dv.dtype.element_ty)
        tl.store(dv_at[:, None] + ev[None, :], y, mask=valid[:, None] & (ev < EV)[None, :])
        more = next_pass(alone, special, BN)
        alone += 1


def attention_native_backward(
    c: Call, grad: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_scores: Tensor | None
) -> None:
    """Writes the gradients; grad, like them, contiguous along the last axis. grad_scores: dS before the soft cap."""
    assert c.lse is not None
    factor, inner, negate = to_base_2(c.attention)
    constants = c.constants()
    wide = max(constants["BE"], constants["BEV"], 64)
    # LSE and D as one layout, rows along memory.
    c = c._replace(lse=c.lse.contiguous())
    assert c.lse is not None
    d = torch.empty_like(c.lse)
    delta(grad, c.out, d)
    if grad_scores is not None:
        grad_scores.zero_()
    bulk = c.mask is None and in_bulk(c.q.device)
    options: dict[str, Any] = {"NEGATE": negate, **constants}
    scale = c.attention.scale

    width = 2 * (constants["BE"] + constants["BEV"])
    tile = QUERY_GRADIENT[wide]
    stages = stages_of(tile.num_stages, tile.BM * width, tile.BN * width, c.q.device)
    described = bulk and describable(c.k) and describable(c.v)
    keys = describe(c.k, tile.BN, constants["BE"]) if described else c.k
    values = describe(c.v, tile.BN, constants["BEV"]) if described else c.v
    launch(
        attention_native_query_gradient_kernel, (c.programs(tile.BM, 1),), c.q, c.k, c.v, keys, values, grad, d,
        grad_q, d if grad_scores is None else grad_scores, *grad.stride()[:3], *grad_q.stride()[:3], scale,
        *c.arguments(tile.BM), factor, inner, DESCRIBED=described, SCORES=grad_scores is not None, BM=tile.BM,
        BN=tile.BN, num_warps=tile.num_warps, num_stages=stages, **options,
    )  # fmt: skip

    tile = KEY_GRADIENT[wide]
    stages = stages_of(tile.num_stages, tile.BN * width, tile.BM * (width + 8), c.q.device)
    described = bulk and describable(c.q) and describable(grad)
    # The interpreter wants copies of one row to begin on a 16-byte border, which the device does not.
    sums = described and d.is_cuda and d.numel() < 2**31
    qs = describe(c.q, tile.BM, constants["BE"]) if described else c.q
    dos = describe(grad, tile.BM, constants["BEV"]) if described else grad
    lses, ds = (TensorDescriptor(t, [t.numel()], [1], [tile.BM]) if sums else t for t in (c.lse, d))
    key_tiles, programs = c.key_tiles(tile.BN)
    launch(
        attention_native_key_gradient_kernel, (programs,), c.q, c.k, c.v, qs, dos, lses, ds, grad, d, grad_k, grad_v,
        *grad.stride()[:3], *grad_k.stride()[:3], *grad_v.stride()[:3], scale, key_tiles, *c.arguments(tile.BM),
        factor, inner, DESCRIBED=described, SUMS=sums, BM=tile.BM, BN=tile.BN, num_warps=tile.num_warps,
        num_stages=stages, **options,
    )  # fmt: skip
