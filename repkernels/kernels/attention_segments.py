"""Attention by segments of 128 keys, as all contracts share it (SPEC.md, "Attention"): which keys a row sees, the
softmax of a segment, the merge of states, the finish.

Rows are those of a tile, (M,) or (M, columns); keys lie along columns. The hardware's maximum may lose a NaN, and take
either zero: a NaN score makes its weight NaN, and so the sum l and every result of the row; a zero changes nothing.
"""

import triton
import triton.language as tl

from repkernels.kernels.functions import exp_f32, ln_f32

SEGMENT = tl.constexpr(128)
LOG2_E = tl.constexpr(float.fromhex("0x1.715476p+0"))
LN_2 = tl.constexpr(float.fromhex("0x1.62e430p-1"))

# How rows and keys of a sequence are found.
DENSE, PACKED, PAGED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# What a mask holds.
NO_MASK, BOOL_MASK, FLOAT_MASK = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def reach(query, low, end, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """(least, stop): a query at a position sees the keys at positions from least to stop, masks apart.

    left, right: the window, where LEFT and RIGHT say that it has that border; a causal one ends at right = 0.
    """
    least, stop = query * 0 + low, query * 0 + end
    if LEFT:
        least = tl.maximum(least, query - left)
    if RIGHT:
        stop = tl.minimum(stop, query + right + 1)
    return least, stop


@triton.jit
def seen(position, least, stop, ALL: tl.constexpr):
    """(rows, keys): whether a row that sees positions from least to stop sees a key. ALL: no least is above 0."""
    sees = position[None, :] < stop[:, None]
    if not ALL:
        sees = sees & (position[None, :] >= least[:, None])
    return sees


@triton.jit
def segments(first, last, low, end, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, UNIT: tl.constexpr = SEGMENT):
    """Segments, of UNIT keys, that queries at positions first .. last see: (begin, whole_begin, whole_end, end).

    All of them see all keys of those from whole_begin to whole_end; no one sees any outside of begin .. end.
    """
    key = tl.maximum(low, first - left) if LEFT else low
    stop = tl.minimum(end, last + right + 1) if RIGHT else end
    begin = key // UNIT
    finish = tl.maximum((stop + UNIT - 1) // UNIT, begin)
    finish = tl.where(stop > key, finish, begin)
    key = tl.maximum(low, last - left) if LEFT else low
    stop = tl.minimum(end, first + right + 1) if RIGHT else end
    whole = tl.minimum(tl.maximum((key + UNIT - 1) // UNIT, begin), finish)
    whole_end = tl.maximum(tl.minimum(tl.maximum(stop, 0) // UNIT, finish), whole)
    return begin, whole, whole_end, finish


@triton.jit
def key_places(position, offset, batch, stride_b, stride_s):
    """int64 offsets of contiguous keys at `position` from the first element of their head."""
    return (offset + position).to(tl.int64) * stride_s + tl.cast(batch, tl.int64) * stride_b


@triton.jit
def pages_of(position, there, b, table, stride_table, PAGE: tl.constexpr):
    """The pages of PAGE keys where keys at `position` lie; -1 for none, and where they are not `there`."""
    return tl.load(table + tl.cast(b, tl.int64) * stride_table + position // PAGE, mask=there, other=-1)


@triton.jit
def paged_places(position, page, stride_b, stride_s, PAGE: tl.constexpr):
    """int64 offsets of keys in their pages from the first element of their head."""
    return page.to(tl.int64) * stride_b + (position % PAGE).to(tl.int64) * stride_s


@triton.jit
def whole_pages(begin, whole, whole_end, b, table, stride_table, PAGE: tl.constexpr):
    """(whole, whole_end), or (begin, begin) if a page of the segments between them is missing."""
    SIZE: tl.constexpr = 128
    missing = begin * 0
    stop = (whole_end * SEGMENT + PAGE - 1) // PAGE
    for i in range(whole * SEGMENT // PAGE, stop, SIZE):
        at = i + tl.arange(0, SIZE)
        page = tl.load(table + tl.cast(b, tl.int64) * stride_table + at, mask=at < stop, other=0)
        missing = tl.maximum(missing, tl.max((page < 0).to(tl.int32), 0))
    return tl.where(missing > 0, begin, whole), tl.where(missing > 0, begin, whole_end)


@triton.jit
def exponential(x, NATIVE: tl.constexpr):
    """e**x by exp_f32; NATIVE: 2**x by the hardware."""
    if NATIVE:
        y = tl.math.exp2(x)
    else:
        y = exp_f32(x)
    return y


@triton.jit
def halve_slots(p):
    """x[:64] + x[64:] of p (M, 128), until one is left -> (M,).

    In the layout of a product's result all but two of the halvings are within a thread.
    """
    for i in tl.static_range(1, 7):
        p = tl.sum(tl.reshape(p, (p.shape[0], 2, SEGMENT >> i)), 1)
    return tl.sum(p, 1)


@triton.jit
def weigh(x, factor, sees, NATIVE: tl.constexpr, MASKED: tl.constexpr):
    """(m, p, l) of a segment with scores x (M, 128): the maximum, the weights and their sum.

    NATIVE: scores are x * factor, to base 2: m = RN(MAX x * factor), p = ex2(fma(x, factor, -m)); factor is not
    negative. Otherwise scores are x. MASKED: p is +0 where not `sees`, and where no key is seen l is +0 and m -inf.
    """
    if MASKED:
        x = tl.where(sees, x, float("-inf"))
    m = tl.max(x, 1)
    if NATIVE:
        m = m * factor
        p = exponential(tl.fma(x, factor, (m * -1.0)[:, None]), True)
    else:
        p = exponential(x - m[:, None], False)
    if MASKED:
        p = tl.where(sees, p, 0.0)
    l = halve_slots(p)
    if MASKED and NATIVE:
        # A factor of 0 makes -inf NaN.
        m = tl.where(l == 0.0, float("-inf"), m)
    return m, p, l


@triton.jit
def ratios(m, m_seg, l_seg, NATIVE: tl.constexpr, MASKED: tl.constexpr):
    """(m', a, b): the maximum of a state and a segment and the factors of both.

    A sum of +0 is that of a segment without a visible key, which changes nothing; only where MASKED can there be one.
    """
    top = tl.maximum(m, m_seg)
    a = exponential(m - top, NATIVE)
    b = exponential(m_seg - top, NATIVE)
    if MASKED:
        present = l_seg != 0.0
        top = tl.where(present, top, m)
        a = tl.where(present, a, 1.0)
        b = tl.where(present, b, 0.0)
    return top, a, b


@triton.jit
def merged(v, v_seg, a, b):
    """fma(v, a, RN(v_seg * b)): a state's l or o with the next segment in it. From m = -inf, l = o = +0 the first
    segment comes out as it is, but for the sign of zeros."""
    return tl.fma(v, a, v_seg * b)


@triton.jit
def positive(x, TYPE: tl.constexpr):
    """fp32 x rounded to TYPE, zeros of either sign as +0."""
    y = x.to(TYPE).to(tl.float32)
    return tl.where(y == 0.0, 0.0, y).to(TYPE)


@triton.jit
def finished(o, l):
    """RN(o * div_rn(1, l)) of o (M, E), l (M,); +0 for rows that saw nothing (l = +0)."""
    y = o * tl.div_rn(tl.full(l.shape, 1.0, tl.float32), l)[:, None]
    return tl.where((l == 0.0)[:, None], 0.0, y)


@triton.jit
def log_sum_exp(m, l, NATIVE: tl.constexpr):
    """RN(m + ln_f32(l)), -inf where nothing was seen; NATIVE: fma(m, RN32(ln 2), ln_f32(l))."""
    if NATIVE:
        lse = tl.fma(m, tl.full(m.shape, LN_2, tl.float32), ln_f32(l))
    else:
        lse = m + ln_f32(l)
    return tl.where(l == 0.0, float("-inf"), lse)


@triton.jit
def with_sink(m, l, o, sink, NATIVE: tl.constexpr):
    """The state with sinks (M,) merged last; it is they where no key was seen."""
    if NATIVE:
        sink = sink * LOG2_E
    none = l == 0.0
    top = tl.maximum(m, sink)
    a = tl.where(none, 0.0, exponential(m - top, NATIVE))
    b = tl.where(none, 1.0, exponential(sink - top, NATIVE))
    return top, tl.fma(l, a, b), merged(o, 0.0, a[:, None], b[:, None])


@triton.jit
def store_rows(
    m, l, o, valid, out, stride_oe, lse, sinks, heads, columns, EV, NATIVE: tl.constexpr, LSE: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """Finishes and stores states m, l (M,), o (M, columns). out, lse: (M,) pointers; sinks: of heads (M,)."""
    if SINKS:
        m, l, o = with_sink(m, l, o, tl.load(sinks + heads, mask=valid, other=0.0), NATIVE)
    y = positive(finished(o, l), out.dtype.element_ty)
    tl.store(out[:, None] + columns[None, :] * stride_oe, y, mask=valid[:, None] & (columns < EV)[None, :])
    if LSE:
        tl.store(lse, log_sum_exp(m, l, NATIVE), mask=valid)
