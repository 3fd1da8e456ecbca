"""`fixed16` attention of few query rows (SPEC.md, "Attention", "fixed"): keys and values are read once, at the speed of
memory, and their digits made in registers.

The digits of the few rows, and those of their weights, lie side by side as the 16 rows of one operand, so that each
digit of a key or value meets both in one product. What is scaled is so by one exact multiplication; programs that meet
a number that is not finite, or too small for that, leave a flag, and their work to attention_general.py.
"""

import torch
import triton
import triton.language as tl

from repkernels.kernels.arith import ldexp, magnitude, power_of_two, quantized, scale_exponent
from repkernels.kernels.attention_arguments import Call
from repkernels.kernels.attention_decode import MOST, Parts
from repkernels.kernels.attention_digits import BIAS_OF, LAST_OF, digits_of_rows, rounded_sum, stacked
from repkernels.kernels.attention_general import FEW, attention_general_again, folded, places_of_keys, scores
from repkernels.kernels.attention_rows import sequence, sequence_of
from repkernels.kernels.attention_segments import (
    SEGMENT,
    merged,
    ratios,
    reach,
    seen,
    segments,
    store_rows,
    weigh,
)
from repkernels.kernels.configuration import processors, shared_memory
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.overlap import begin

ROWS = tl.constexpr(8)  # of a tile: two digits of each fill the rows of a product
# 1.5 * 2^23 and 128 in either byte: the sum with a number below 2^15 ends in the number's digits, biased, and begins
# with the byte 0x4B, which before a digit's byte makes 15 + digit / 128 in fp16.
BIASED = tl.constexpr(12582912.0 + 32896.0)
TO_INTEGER = tl.constexpr(12582912.0)
# Below all weights, which are numbers' bits with exponents of their own.
NO_WEIGHT = tl.constexpr(-(1 << 30))


@triton.jit
def halves(y, ASM: tl.constexpr):
    """The two digits that y, a sum with BIASED, ends in, divided by 128, as fp16."""
    if ASM:
        high, low = tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, $3, 0x7531; prmt.b32 $1, $2, $3, 0x7430;", "=&r,=r,r,r", [y],
            dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        bits = y.to(tl.int32, bitcast=True)
        high = (((bits >> 8) & 255) | 0x4B00).to(tl.int16).to(tl.float16, bitcast=True)
        low = ((bits & 255) | 0x4B00).to(tl.int16).to(tl.float16, bitcast=True)
    return high - 15.0, low - 15.0


@triton.jit
def widened(x, ASM: tl.constexpr):
    """x as fp32. ASM: two numbers of 16 bits at a time, which Triton would take apart first."""
    if ASM and x.dtype == tl.bfloat16:
        y = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;", "=&r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def row_digits(blocks, BLOCKS: tl.constexpr, ASM: tl.constexpr):
    """Rows as blocks (R, W) of columns -> their high and low digits over 128, as tuples, exponents (R,), bits of the
    largest magnitudes (R,). Right for rows of which `simple` says so."""
    wide = (widened(blocks[0], ASM),)
    for i in tl.static_range(1, BLOCKS):
        wide = wide + (widened(blocks[i], ASM),)
    largest = tl.abs(wide[0])
    for i in tl.static_range(1, BLOCKS):
        largest = tl.maximum(largest, tl.abs(wide[i]), propagate_nan=tl.PropagateNan.ALL)
    most = tl.max(magnitude(largest), 1)
    e = scale_exponent(most, 2, LAST_OF[2])
    shift = tl.broadcast_to(power_of_two(tl.minimum(-e, 127))[:, None], largest.shape)
    high, low = (), ()
    for i in tl.static_range(BLOCKS):
        x, y = halves(tl.fma(wide[i], shift, tl.full(largest.shape, BIASED, tl.float32)), ASM)
        high, low = high + (x,), low + (y,)
    return high, low, e, most


@triton.jit
def simple(e, most):
    """Whether one multiplication scales a row by 2^-e, and its elements are finite."""
    return (most < 0x7F800000) & (e >= -127)


@triton.jit
def rounded(a, b):
    """RN32 of a product of rows of two digits each, from those with the high and the low digits over 128 of others."""
    N: tl.constexpr = a.shape[1]
    slot = tl.arange(0, 2)[:, None, None]
    a, b = whole(a, N), whole(b, N)
    above = tl.sum(tl.where(slot == 0, a, 0), 0)
    below = tl.sum(tl.where(slot == 0, b * 256, a * 256 + b), 0)
    return rounded_sum(above, below)


@triton.jit
def whole(r, N: tl.constexpr):
    """128 r, whole numbers up to 2^22, as int32 (2, ROWS, N)."""
    size: tl.constexpr = r.shape[0] // 2
    return tl.reshape(
        tl.fma(r, 128.0, tl.full(r.shape, TO_INTEGER, tl.float32)).to(tl.int32, bitcast=True) - 0x4B400000, (2, size, N)
    )


@triton.jit
def rows_of_blocks(base, places, there, WIDTH: tl.constexpr, BLOCKS: tl.constexpr, W: tl.constexpr):
    """The rows at base + places (R,) in blocks (R, W) of columns, of which four threads hold a row's."""
    at = base + places[:, None] + tl.arange(0, W)[None, :]
    blocks = ()
    for i in tl.static_range(BLOCKS):
        if WIDTH >= (i + 1) * W:
            x = tl.load(at + i * W, mask=there[:, None], other=0.0)
        else:
            x = tl.load(at + i * W, mask=there[:, None] & (tl.arange(0, W) < WIDTH - i * W)[None, :], other=0.0)
        blocks = blocks + (x,)
    return blocks


@triton.jit
def column_of(i, VEC: tl.constexpr):
    """The column of a block that takes part in a product of rows at place i: so four threads' vectors of VEC become an
    operand without a move between threads."""
    return (i // 2) % 4 * VEC + i // 16 * 4 + (i // 8) % 2 * 2 + i % 2


@triton.jit
def in_order_of_places(x, VEC: tl.constexpr):
    """x (R, 4 * VEC) as (4 * VEC, R), columns as `column_of` has them."""
    R: tl.constexpr = x.shape[0]
    x = tl.reshape(x, (R, 4, VEC // 4, 2, 2))
    return tl.reshape(tl.permute(x, (2, 3, 1, 4, 0)), (4 * VEC, R))


@triton.jit
def weight_digits(p, e, counts):
    """Weights p (M, N), never subnormal, of rows with exponents e (N,) -> biased fixed-point numbers, exponents (M,).

    counts: (N,), rows that are not zero.
    """
    bits = p.to(tl.int32, bitcast=True)
    # A number's bits whose exponent may be below zero or above 255.
    bits = tl.where((bits > 0) & counts[None, :], bits + (e << 23)[None, :], NO_WEIGHT)
    most = tl.max(bits, 1)
    significand = (most & 0x007FFFFF) | 0x00800000
    f = (most >> 23) - (127 + 14) + (significand > LAST_OF[2]).to(tl.int32)
    f = tl.where(most == NO_WEIGHT, 0, f)
    bits = bits - (f << 23)[:, None]
    y = tl.where(bits < 0x00800000, 0, bits).to(tl.float32, bitcast=True)
    return (y + BIASED).to(tl.int32, bitcast=True) & 0xFFFF, f


UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "scale", "softcap", "COUNT", "PART"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_fixed_parts_kernel(
    q, k, v, parts, sums, flags, out, lse, mask, sinks, queries, lengths, table, first_key, first_query, B, L, S, HQ,
    HKV, tiles, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_ol, stride_oe, stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml,
    stride_mk, left, right, scale, softcap, COUNT, PART, E: tl.constexpr, EV: tl.constexpr,
    LAYOUT: tl.constexpr, LENGTH: tl.constexpr, PAGE: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, VEC: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr, SPLIT: tl.constexpr, ASM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One tile of ROWS rows over its segments. SPLIT: over PART of COUNT segments, whose states go into parts and sums
    as attention_decode.py has them. flags (programs,): 1 where the result is not to be used."""
    begin(OVERLAP)
    SIZE: tl.constexpr = ROWS // FOLD
    W: tl.constexpr = 4 * VEC
    BLOCKS: tl.constexpr = BE // W
    BLOCKS_V: tl.constexpr = BEV // W
    split = tl.cdiv(COUNT, PART)
    b, block, tile = sequence_of(tl.program_id(0) // split, queries, tiles, B, HQ // FOLD, SIZE, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    if tile * SIZE < count:
        head = (block * FOLD * HKV) // HQ
        r = tl.arange(0, ROWS)
        query, heads = tile * SIZE + r // FOLD, block * FOLD + r % FOLD
        valid = (query < count) & (r < SIZE * FOLD)
        first = start + tile * SIZE
        last = tl.minimum(first + SIZE, start + count) - 1
        from_, whole_begin, whole_end, to = segments(first, last, low, end, left, right, LEFT, RIGHT)
        memory, wide_heads, wide = (row + query).to(tl.int64), heads.to(tl.int64), tl.cast(batch, tl.int64)
        part = ((wide * L + memory) * HQ + heads) * COUNT - from_
        if SPLIT:
            from_ += tl.program_id(0) % split * PART
            to = tl.minimum(to, from_ + PART)
        lowest, past = reach(first, low, end, left, right, LEFT, RIGHT)
        before, highest = reach(last, low, end, left, right, LEFT, RIGHT)
        least, stop = reach(start + query, low, end, left, right, LEFT, RIGHT)

        columns = tl.arange(0, BE)
        at_q = q + wide * stride_qb + memory * stride_ql + wide_heads * stride_qh
        x = tl.load(at_q[:, None] + columns[None, :], mask=valid[:, None] & (columns < E)[None, :], other=0.0)
        digits, e_q, odd = digits_of_rows(x.to(tl.float32), 2)
        odd = tl.max(odd, 0)
        xs = ()
        for i in tl.static_range(BLOCKS):
            columns = i * W + column_of(tl.arange(0, W), VEC)
            x = tl.load(at_q[:, None] + columns[None, :], mask=valid[:, None] & (columns < E)[None, :], other=0.0)
            xs = xs + (stacked(quantized(x.to(tl.float32), e_q, 2) + BIAS_OF[2], 2, 2),)
        k_head, v_head = k + tl.cast(head, tl.int64) * stride_kh, v + tl.cast(head, tl.int64) * stride_vh
        at_mask = wide * stride_mb + memory * stride_ml + wide_heads * stride_mh
        m = tl.full((ROWS,), float("-inf"), tl.float32)
        l = tl.zeros((ROWS,), tl.float32)
        o = ()
        for _i in tl.static_range(BLOCKS_V):
            o = o + (tl.zeros((ROWS, W), tl.float32),)
        for g in tl.range(from_, to):
            position = g * SEGMENT + tl.arange(0, SEGMENT)
            reached = (position >= lowest) & (position < highest)
            at_k, there = places_of_keys(position, reached, offset, batch, b, table, stride_table, stride_kb, stride_ks,
                                         PAGE)  # fmt: skip
            at_v, there = places_of_keys(position, reached, offset, batch, b, table, stride_table, stride_vb, stride_vs,
                                     PAGE)  # fmt: skip
            keys = rows_of_blocks(k_head, at_k, there, E, BLOCKS, W)
            high, low_, e, most = row_digits(keys, BLOCKS, ASM)
            values = rows_of_blocks(v_head, at_v, there, EV, BLOCKS_V, W)
            odd = tl.maximum(odd, tl.max((~simple(e, most)).to(tl.int32), 0))
            above = tl.zeros((2 * ROWS, SEGMENT), tl.float32)
            below = above
            for i in tl.static_range(BLOCKS):
                above = tl.dot(xs[i], in_order_of_places(high[i], VEC), above, out_dtype=tl.float32)
                below = tl.dot(xs[i], in_order_of_places(low_[i], VEC), below, out_dtype=tl.float32)
            s = ldexp(rounded(above, below), e_q[:, None] + e[None, :])
            sees = seen(position, least, stop, not (LEFT or FIRST_KEY)) & valid[:, None] & there[None, :]
            at = at_mask[:, None] + (offset + position).to(tl.int64)[None, :] * stride_mk
            s, sees, capped = scores(s, sees, mask, at, scale, softcap, SOFTCAP, MASK)
            m_seg, p, l_seg = weigh(s, 1.0, sees, False, True)
            high, low_, e, most = row_digits(values, BLOCKS_V, ASM)
            odd = tl.maximum(odd, tl.max((~simple(e, most)).to(tl.int32), 0))
            w, f = weight_digits(p, e, most > 0)
            w = stacked(w, 2, 2)
            if SPLIT:
                tl.store(sums + (part + g) * 2, m_seg, mask=valid)
                tl.store(sums + (part + g) * 2 + 1, l_seg, mask=valid)
            m, ratio, ratio_seg = ratios(m, m_seg, l_seg, False, True)
            l = merged(l, l_seg, ratio, ratio_seg)
            merged_o = ()
            for i in tl.static_range(BLOCKS_V):
                above = tl.dot(w, high[i], out_dtype=tl.float32)
                below = tl.dot(w, low_[i], out_dtype=tl.float32)
                o_seg = ldexp(rounded(above, below), f[:, None])
                if SPLIT:
                    columns = i * W + tl.arange(0, W)
                    at_o = parts + (part + g)[:, None] * EV + columns[None, :]
                    tl.store(at_o, o_seg, mask=valid[:, None] & (columns < EV)[None, :])
                    merged_o = merged_o + (o[i],)
                else:
                    merged_o = merged_o + (merged(o[i], o_seg, ratio[:, None], ratio_seg[:, None]),)
            o = merged_o
        tl.store(flags + tl.program_id(0), odd)
        if not SPLIT:
            out_at = out + wide * stride_ob + memory * stride_ol + wide_heads * stride_oh
            lse_at = lse + wide * stride_lb + wide_heads * stride_lh + memory
            for i in tl.static_range(BLOCKS_V):
                columns = i * W + tl.arange(0, W)
                store_rows(m, l, o[i], valid, out_at, stride_oe, lse_at, sinks, heads, columns, EV, False,
                           LSE and i == 0, SINKS)  # fmt: skip


REGISTERS: int | None = None  # of a thread; None: as many as it wants
LONGEST = 8  # segments of a program, where there are programs enough
WIDEST = 256  # columns of a row, as padded
ASIDE = 8192  # bytes of shared memory beside the digits of values


def decode_fixed(c: Call) -> bool:
    """Attention of few rows, `fixed16`; False, and nothing done, where rows are many or too wide."""
    constants = c.constants()
    VEC = 16 // c.q.element_size()
    BE, BEV = max(4 * VEC, constants["BE"]), max(4 * VEC, constants["BEV"])
    if c.rows > FEW or max(BE, BEV) > WIDEST or 4 * SEGMENT.value * BEV + ASIDE > shared_memory(c.q.device):
        return False
    FOLD = folded(c.group, ROWS.value)
    plan = Parts(c, ROWS.value, FOLD)
    tiles = c.programs(plan.size, FOLD)
    plan.part = min(LONGEST, max(1, plan.count * tiles // (16 * processors(c.q.device))))
    batch, heads, rows, columns = c.out.shape
    if batch * heads * rows * plan.count * (columns + 2) * 4 > MOST:
        plan.part = plan.count
    split = plan.part < plan.count
    parts, sums = plan.empty() if split else (c.out, c.out)
    flags = torch.empty((plan.programs,), dtype=torch.int32, device=c.q.device)
    overlap = can_overlap(c.q.device)
    launch(
        attention_fixed_parts_kernel, (plan.programs,), c.q, c.k, c.v, parts, sums, flags, *c.arguments(plan.size),
        c.attention.scale, c.attention.softcap, plan.count, plan.part, **{**constants, "BE": BE, "BEV": BEV},
        FOLD=FOLD, VEC=VEC, SPLIT=split, ASM=takes_ptx(c.q.device), OVERLAP=overlap, overlap=overlap, num_warps=4,
        num_stages=1, registers=REGISTERS,
    )  # fmt: skip
    attention_general_again(c, plan, parts, sums, flags)
    if split:
        plan.merge(parts, sums, False)
    return True


def takes_ptx(device: torch.device) -> bool:
    """Whether a kernel may hold lines of PTX, which the interpreter has not."""
    return device.type == "cuda" and torch.version.hip is None
