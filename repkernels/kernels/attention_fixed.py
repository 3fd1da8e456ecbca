"""`fixed16` attention of many rows: int8 tensor cores on digits made beforehand (SPEC.md, "Attention", "fixed").

Everything that is scaled is so by one exact multiplication, which holds while exponents are moderate and elements
finite; sequences and heads for which it does not, flagged as digits are made, are left to attention_general.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from repkernels.contract import digits_of
from repkernels.kernels.arith import power_of_two, scale_exponent
from repkernels.kernels.attention_arguments import Call
from repkernels.kernels.attention_digits import LAST_OF, rounded_sum
from repkernels.kernels.attention_fixed_decode import decode_fixed
from repkernels.kernels.attention_general import FEW, WIDEST, attention_general
from repkernels.kernels.attention_planes import K, Q, V, in_order_of_places, planes_of
from repkernels.kernels.attention_rows import sequence, sequence_of
from repkernels.kernels.attention_segments import (
    DENSE,
    SEGMENT,
    merged,
    ratios,
    reach,
    seen,
    segments,
    store_rows,
    weigh,
)
from repkernels.kernels.configuration import shared_memory
from repkernels.kernels.engine import engine_for
from repkernels.kernels.launch import launch
from repkernels.kernels.operand import describe

# 1.5 * 2^23 and 128 in either byte: what is added to a number below 2^15 leaves it, biased, in the sum's last 16 bits.
BIASED = tl.constexpr(12582912.0 + 32896.0)


@triton.jit
def product(x0, x1, y0, y1):
    """RN32 of the exact product of 16-bit numbers x (M, K) and y (N, K), their high and low digits; K <= 256."""
    high = tl.dot(x0, tl.trans(y0), out_dtype=tl.int32)
    low = tl.dot(x0, tl.trans(y1), out_dtype=tl.int32)
    low = tl.dot(x1, tl.trans(y0), low, out_dtype=tl.int32)
    low = tl.dot(x1, tl.trans(y1), low << 8, out_dtype=tl.int32)
    return rounded_sum(high, low)


@triton.jit
def segment_of(
    x0, x1, factor, line, rows_k, plane_k, rows_v, plane_v, keys, values, factors_k, factors_v, sees,
    MASKED: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(m, l, o, o') of the segment at `line`, for rows of digits x0, x1 (M, E), whose factors hold the scale.

    PARTS: 1, or 2 for the halves of v's columns one after the other.
    """
    y0, y1 = keys.load([rows_k + line, 0]), keys.load([rows_k + plane_k + line, 0])
    place = tl.arange(0, SEGMENT)
    s = product(x0, x1, y0, y1) * factor[:, None] * tl.load(factors_k + place)[None, :]
    m, p, l = weigh(s, 1.0, sees, False, MASKED)
    w = p * tl.load(factors_v + place)[None, :]
    most = tl.max(w.to(tl.int32, bitcast=True), 1)
    e = scale_exponent(most, 2, LAST_OF[2])
    shift = tl.broadcast_to(power_of_two(-e)[:, None], w.shape)
    w = in_order_of_places(tl.fma(w, shift, tl.full(w.shape, BIASED, tl.float32)).to(tl.int32, bitcast=True))
    w0, w1 = ((w >> 8) ^ 0x80).to(tl.int8), (w ^ 0x80).to(tl.int8)
    scale = power_of_two(e)[:, None]
    o = product(w0, w1, values.load([rows_v, line]), values.load([rows_v + plane_v, line])) * scale
    other = o
    if PARTS == 2:
        rows_v += COLUMNS
        other = product(w0, w1, values.load([rows_v, line]), values.load([rows_v + plane_v, line])) * scale
    return m, l, o, other


UNSPECIALISED = ["B", "L", "S", "tiles", "left", "right", "key_tiles", "total_q", "total_k"]


@triton.jit(do_not_specialize=UNSPECIALISED)
def attention_fixed_kernel(
    digits_q, keys, values, factors_q, factors_k, factors_v, flags, key_tiles, total_q, total_k, out, lse, mask, sinks,
    queries, lengths, table, first_key, first_query, B, L, S, HQ, HKV, tiles, stride_qb, stride_qh, stride_ql,
    stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, stride_ob, stride_oh, stride_ol, stride_oe,
    stride_lb, stride_lh, stride_table, stride_mb, stride_mh, stride_ml, stride_mk, left, right,
    E: tl.constexpr, EV: tl.constexpr, LAYOUT: tl.constexpr, LENGTH: tl.constexpr, PAGE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, FIRST_KEY: tl.constexpr, FIRST_QUERY: tl.constexpr, MASK: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of BM queries of a head. digits_q, keys, values: descriptors of attention_planes.py's matrices."""
    b, h, tile = sequence_of(tl.program_id(0), queries, tiles, B, HQ, BM, LAYOUT, LENGTH)
    batch, row, count, offset, low, end, start = sequence(
        b, queries, lengths, first_key, first_query, B, L, S, LAYOUT, FIRST_KEY, FIRST_QUERY
    )
    head = (h * HKV) // HQ
    if (tile * BM < count) & (tl.load(flags + b * HKV + head) == 0):
        query = tile * BM + tl.arange(0, BM)
        valid = query < count
        first = start + tile * BM
        last = tl.minimum(first + BM, start + count) - 1
        begin, whole, whole_end, finish = segments(first, last, low, end, left, right, LEFT, RIGHT)
        least, stop = reach(start + query, low, end, left, right, LEFT, RIGHT)
        if LAYOUT == DENSE:
            tile_q, tile_k = b * tiles + tile, b * key_tiles
        else:
            tile_q, tile_k = tl.load(queries + b) // BM + b + tile, tl.load(lengths + b) // SEGMENT + b
        line_q, line_k = h * total_q + tile_q * BM, (tile_k - low // SEGMENT) * SEGMENT
        x0, x1 = digits_q.load([line_q, 0]), digits_q.load([HQ * total_q + line_q, 0])
        factor = tl.load(factors_q + line_q + tl.arange(0, BM))
        rows_k, rows_v, plane_k = head * total_k, head * (PARTS * COLUMNS), HKV * total_k
        plane_v = HKV * (PARTS * COLUMNS)
        at_k = head * total_k
        m = tl.full((BM,), float("-inf"), tl.float32)
        l = tl.zeros((BM,), tl.float32)
        o = tl.zeros((BM, COLUMNS), tl.float32)
        other = o
        if LEFT or FIRST_KEY:
            for g in tl.range(begin, whole, num_stages=1):
                line = line_k + g * SEGMENT
                position = g * SEGMENT + tl.arange(0, SEGMENT)
                sees = seen(position, least, stop, False)
                m_seg, l_seg, o_seg, other_seg = segment_of(
                    x0, x1, factor, line, rows_k, plane_k, rows_v, plane_v, keys, values, factors_k + at_k + line,
                    factors_v + at_k + line, sees, True, PARTS, COLUMNS,
                )  # fmt: skip
                m, x, y = ratios(m, m_seg, l_seg, False, True)
                l, o = merged(l, l_seg, x, y), merged(o, o_seg, x[:, None], y[:, None])
                if PARTS == 2:
                    other = merged(other, other_seg, x[:, None], y[:, None])
        for g in tl.range(whole, whole_end):
            line = line_k + g * SEGMENT
            m_seg, l_seg, o_seg, other_seg = segment_of(
                x0, x1, factor, line, rows_k, plane_k, rows_v, plane_v, keys, values, factors_k + at_k + line,
                factors_v + at_k + line, valid[:, None], False, PARTS, COLUMNS,
            )  # fmt: skip
            m, x, y = ratios(m, m_seg, l_seg, False, False)
            l, o = merged(l, l_seg, x, y), merged(o, o_seg, x[:, None], y[:, None])
            if PARTS == 2:
                other = merged(other, other_seg, x[:, None], y[:, None])
        for g in tl.range(whole_end, finish, num_stages=1):
            line = line_k + g * SEGMENT
            position = g * SEGMENT + tl.arange(0, SEGMENT)
            sees = seen(position, least, stop, not (LEFT or FIRST_KEY))
            m_seg, l_seg, o_seg, other_seg = segment_of(
                x0, x1, factor, line, rows_k, plane_k, rows_v, plane_v, keys, values, factors_k + at_k + line,
                factors_v + at_k + line, sees, True, PARTS, COLUMNS,
            )  # fmt: skip
            m, x, y = ratios(m, m_seg, l_seg, False, True)
            l, o = merged(l, l_seg, x, y), merged(o, o_seg, x[:, None], y[:, None])
            if PARTS == 2:
                other = merged(other, other_seg, x[:, None], y[:, None])
        memory, wide, wide_head = (row + query).to(tl.int64), tl.cast(batch, tl.int64), tl.cast(h, tl.int64)
        out_at = out + wide * stride_ob + memory * stride_ol + wide_head * stride_oh
        lse_at = lse + wide * stride_lb + wide_head * stride_lh + memory
        columns = tl.arange(0, COLUMNS)
        heads = h + tl.zeros((BM,), tl.int32)
        store_rows(m, l, o, valid, out_at, stride_oe, lse_at, sinks, heads, columns, EV, False, LSE, SINKS)
        if PARTS == 2:
            columns += COLUMNS
            store_rows(m, l, other, valid, out_at, stride_oe, lse_at, sinks, heads, columns, EV, False, False, SINKS)


class FixedTile(NamedTuple):
    """Rows of a tile, how its program is compiled, and in how many parts it takes v's columns."""

    BM: int
    num_warps: int
    num_stages: int
    PARTS: int


# By the larger of the two head sizes, as padded.
TILES = {64: FixedTile(128, 8, 2, 1), 128: FixedTile(128, 8, 2, 1), 256: FixedTile(64, 8, 1, 2)}

_forced: ContextVar[FixedTile | None] = ContextVar("repkernels_attention_fixed_tile", default=None)


@contextmanager
def use_fixed_tile(tile: FixedTile) -> Iterator[None]:
    """`fixed16` attention inside the block uses these tiles: for proofs that they change no bit, and for tuning."""
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def attention_fixed(c: Call) -> None:
    """Writes c.out and c.lse under a `fixed` contract."""
    S = digits_of(c.attention.contract)
    if S == 2 and decode_fixed(c):
        return
    moderate = 2.0**-20 <= abs(c.attention.scale) <= 2.0**20
    plain = c.sequences.table is None and c.mask is None and c.attention.softcap == 0 and moderate
    constants = c.constants()
    tile = fitting(max(32, constants["BE"]), max(32, constants["BEV"]), c.q.device)
    shared = c.group * c.k.shape[1] == c.q.shape[1]
    if S != 2 or not plain or not shared or c.rows <= FEW or not int8(c.q.device) or tile is None:
        attention_general(c)
        return
    flags = torch.zeros((c.batch + 1, c.k.shape[1]), dtype=torch.int32, device=c.q.device)
    q = planes_of(c, c.q, Q.value, tile.BM, flags)
    k, v = planes_of(c, c.k, K.value, SEGMENT.value, flags), planes_of(c, c.v, V.value, SEGMENT.value, flags)
    columns = len(v.planes) // (2 * c.k.shape[1] * tile.PARTS)
    launch(
        attention_fixed_kernel, (c.programs(tile.BM, 1),), describe(q.planes, [tile.BM, q.planes.shape[1]]),
        describe(k.planes, [SEGMENT.value, k.planes.shape[1]]), describe(v.planes, [columns, SEGMENT.value]), q.factors,
        k.factors, v.factors, flags, k.tiles, q.total, k.total, *c.arguments(tile.BM), BM=tile.BM, PARTS=tile.PARTS,
        COLUMNS=columns, num_warps=tile.num_warps, num_stages=tile.num_stages, **constants,
    )  # fmt: skip
    attention_general(c, flags)


def fitting(BE: int, BEV: int, device: torch.device) -> FixedTile | None:
    """A tile that shared memory holds the operands of, with as many stages as it can; None if there is none."""
    if chosen := _forced.get():
        return chosen
    if max(BE, BEV) > WIDEST:
        return None
    tile = TILES[max(BE, BEV, 64)]
    for c in (tile, tile._replace(num_stages=1), tile._replace(BM=64, num_warps=4, num_stages=1)):
        if 2 * (c.BM * BE + c.num_stages * SEGMENT.value * (BE + BEV)) + 2048 <= shared_memory(device):
            return c
    return None


def int8(device: torch.device) -> bool:
    """Whether the device has int8 tensor cores worth using."""
    return engine_for(device) in ("int8", "cpu")
