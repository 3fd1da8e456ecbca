"""One segment of `native` attention: tensor cores, and the hardware's exp2 (SPEC.md, "Attention", "native")."""

import triton
import triton.language as tl

from repkernels.kernels.attention_segments import (
    BOOL_MASK,
    LOG2_E,
    SEGMENT,
    key_places,
    paged_places,
    pages_of,
    seen,
    weigh,
)


@triton.jit
def not_finite(v):
    """Where bf16 or fp16 v is infinite or NaN."""
    exponent: tl.constexpr = 0x7F80 if v.dtype == tl.bfloat16 else 0x7C00
    return (v.to(tl.int16, bitcast=True) & exponent) == exponent


@triton.jit
def weighted(p, v, sees, DIFFER: tl.constexpr):
    """The product of weights p (M, 128) with v (128, E). DIFFER: rows may see different keys, those that `sees` says.

    A weight of +0 does not hide an infinity, so where v is not finite each row is multiplied with what it sees of v.
    """
    weights = p.to(v.dtype)
    o = tl.dot(weights, v)
    if DIFFER:
        special = not_finite(v)
        if tl.max(tl.max(special.to(tl.int32), 1), 0) > 0:
            rows = tl.arange(0, p.shape[0])[:, None]
            for r in range(p.shape[0]):
                by_row = tl.max(tl.where(rows == r, sees, False).to(tl.int32), 0) > 0
                visible = tl.where(by_row[:, None] | (special == 0), v, 0.0)
                o = tl.where(rows == r, tl.dot(weights, visible.to(v.dtype)), o)
    return o


@triton.jit
def scores(x, factor, inner, NEGATE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Contractions x as what `factor` makes scores to base 2. SOFTCAP: the hyperbolic tangent by the hardware's exp2."""
    if SOFTCAP:
        x = 1.0 - tl.div_rn(tl.full(x.shape, 2.0, tl.float32), tl.math.exp2(x * inner) + 1.0)
    elif NEGATE:
        x = x * -1.0
    return x


@triton.jit
def segment_of(
    q, g, at, valid, low, end, least, stop, left, right, k, v, keys, values, batch, head, offset, b, table,
    stride_table, stride_kb, stride_ks, stride_vb, stride_vs, mask, stride_mk, factor, inner,
    E: tl.constexpr, EV: tl.constexpr, PAGE: tl.constexpr, DESCRIBED: tl.constexpr, MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    MASK: tl.constexpr, NEGATE: tl.constexpr, SOFTCAP: tl.constexpr, DIFFER: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr,
):  # fmt: skip
    """(m, l, o) of segment g for rows q (M, BE) at positions `at` (M,).

    k, v: pointers to the KV head; keys, values: descriptors, if DESCRIBED. mask: (M,) pointers to the rows of the mask.
    least, stop: no row sees a key below or from there on. DIFFER: rows may see different keys.
    """
    position = g * SEGMENT + tl.arange(0, SEGMENT)
    sees = position[None, :] >= 0
    if DESCRIBED and not MASKED:
        kk = keys.load([batch, head, offset + g * SEGMENT, 0]).reshape(SEGMENT, BE)
        vv = values.load([batch, head, offset + g * SEGMENT, 0]).reshape(SEGMENT, BEV)
    else:
        there = position >= 0
        if MASKED:
            there = (position >= least) & (position < stop)
        if PAGE > 0:
            page = pages_of(position, there, b, table, stride_table, PAGE)
            k_at = paged_places(position, page, stride_kb, stride_ks, PAGE)
            v_at = paged_places(position, page, stride_vb, stride_vs, PAGE)
            if MASKED:
                there = page >= 0
        else:
            k_at = key_places(position, offset, batch, stride_kb, stride_ks)
            v_at = key_places(position, offset, batch, stride_vb, stride_vs)
        ke, ve = tl.arange(0, BE), tl.arange(0, BEV)
        k_at, v_at = k + k_at[:, None] + ke[None, :], v + v_at[:, None] + ve[None, :]
        if MASKED:
            kk = tl.load(k_at, mask=there[:, None] & (ke < E)[None, :], other=0.0)
            vv = tl.load(v_at, mask=there[:, None] & (ve < EV)[None, :], other=0.0)
            sees = there[None, :] & seen(at[:, None], position[None, :], low, end, left, right, LEFT, RIGHT)
        elif BE == E and BEV == EV:
            kk, vv = tl.load(k_at), tl.load(v_at)
        else:
            kk = tl.load(k_at, mask=(ke < E)[None, :], other=0.0)
            vv = tl.load(v_at, mask=(ve < EV)[None, :], other=0.0)
    x = scores(tl.dot(q, tl.trans(kk)), factor, inner, NEGATE, SOFTCAP)
    if MASK:
        mask_at = mask[:, None] + ((offset + position).to(tl.int64) * stride_mk)[None, :]
        shift = tl.load(mask_at, mask=valid[:, None] & there[None, :], other=0)
        if MASK == BOOL_MASK:
            sees = sees & (shift != 0)
        else:
            shift = shift.to(tl.float32)
            sees = sees & (shift != float("-inf"))
            x = tl.fma(x, factor, shift * LOG2_E)
            factor = 1.0
    m, p, l = weigh(x, factor, sees, True, MASKED)
    return m, l, weighted(p, vv, sees, DIFFER and MASKED)
