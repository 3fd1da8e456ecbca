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
def holds_special(v):
    """1 if bf16 or fp16 v (128, E) holds an infinity or NaN, otherwise 0."""
    exponent: tl.constexpr = 0x7F80 if v.dtype == tl.bfloat16 else 0x7C00
    special = (v.to(tl.int16, bitcast=True) & exponent) == exponent
    return tl.max(tl.max(special.to(tl.int32), 1), 0)


@triton.jit
def scores(x, factor, inner, NEGATE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Contractions x as what `factor` makes scores to base 2. SOFTCAP: tanh by the hardware's exp2."""
    if SOFTCAP:
        x = 1.0 - tl.div_rn(tl.full(x.shape, 2.0, tl.float32), tl.math.exp2(x * inner) + 1.0)
    elif NEGATE:
        x = x * -1.0
    return x


@triton.jit
def pages_of_segment(g, lowest, highest, b, table, stride_table, PAGE: tl.constexpr):
    """(128,): the pages of the keys of segment g at positions from lowest to highest, -1 elsewhere; 0 without pages.

    Loops read them one segment ahead: where addresses depend on a load of the same iteration, Triton has no copy of
    keys and values in flight during the products.
    """
    position = g * SEGMENT + tl.arange(0, SEGMENT)
    page = position * 0
    if PAGE > 0:
        page = pages_of(position, (position >= lowest) & (position < highest), b, table, stride_table, PAGE)
    return page


@triton.jit
def segment_of(
    q, g, page, least, stop, lowest, highest, valid, k, v, keys, values, batch, head, offset, stride_kb, stride_ks,
    stride_vb, stride_vs, mask, stride_mk, factor, inner, E: tl.constexpr, EV: tl.constexpr, PAGE: tl.constexpr,
    DESCRIBED: tl.constexpr, MASKED: tl.constexpr, ALL: tl.constexpr, MASK: tl.constexpr, NEGATE: tl.constexpr,
    SOFTCAP: tl.constexpr, DIFFER: tl.constexpr, BE: tl.constexpr, BEV: tl.constexpr,
):  # fmt: skip
    """(m, l, o, special) of segment g for rows q (M, BE) that see positions from least to stop (M,).

    page: those of its keys. k, v: pointers to the KV head; keys, values: descriptors, if DESCRIBED. mask: (M,) pointers
    to the rows of the mask. lowest, highest: no row sees a key below or from there on. MASKED: not every row sees every
    key. ALL: no least is above 0. DIFFER: rows may see different keys; then `special` says that o is not to be used, as
    there is an infinity or NaN in v, which a weight of +0 does not hide.
    """
    position = g * SEGMENT + tl.arange(0, SEGMENT)
    sees = position[None, :] >= 0
    if DESCRIBED and not MASKED:
        kk = keys.load([batch, head, offset + g * SEGMENT, 0]).reshape(SEGMENT, BE)
        vv = values.load([batch, head, offset + g * SEGMENT, 0]).reshape(SEGMENT, BEV)
    else:
        there = position >= 0
        if MASKED:
            there = (position >= lowest) & (position < highest)
        if PAGE > 0:
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
            sees = seen(position, least, stop, ALL)
            if PAGE > 0:
                sees = sees & there[None, :]
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
        if MASKED:
            by_any = tl.max(sees.to(tl.int32), 0) > 0
            vv = tl.where(by_any[:, None], vv, tl.zeros_like(vv))
    m, p, l = weigh(x, factor, sees, True, MASKED)
    special = 0
    if DIFFER and MASKED:
        special = holds_special(vv)
    return m, l, tl.dot(p.to(vv.dtype), vv), special
