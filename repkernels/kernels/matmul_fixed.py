"""`fixed` contractions on a GPU: exact integer sums of digit products (SPEC.md, "fixed").

The sums are exact, so tiles, the order of k, splits and engines are free: the configuration follows shape and device.
Engine "int8" uses int8 tensor cores; "window16" multiplies digits as fp16 integers and drains the fp32 accumulator to
int32 after every BK terms, before the sum of magnitudes can pass 2**24.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.digits import Digits, padded
from repkernels.kernels.arith import ldexp, low_digit, quantized, store_result, tile_of
from repkernels.kernels.configuration import Configuration, pick, processors
from repkernels.kernels.engine import engine_for
from repkernels.kernels.launch import launch
from repkernels.kernels.operand import describe, describe_digits, readable, strides
from repkernels.kernels.quantize import quantize

# P' fits int64 up to this K, by number of digits; an int32 sum of t products per k up to 131071 / t.
LONGEST_INT64 = (0, 2**48, 2**33, 2**25, 2**17)
LONGEST_INT32 = 131071


@triton.jit
def digit_dot(x, y, acc, WINDOW16: tl.constexpr):
    """acc + x @ y for int8 digits, exact in int32."""
    if WINDOW16:
        return acc + tl.dot(x.to(tl.float16), y.to(tl.float16), out_dtype=tl.float32).to(tl.int32)
    return tl.dot(x, y, acc, out_dtype=tl.int32)


@triton.jit
def digit_sum(
    a, b, row_a, row_b, plane_a, plane_b, exponent_a, k0, k1,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WINDOW16: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """P' over k0..k1 as int64, from int32 sums of the products of equal weight; S * (k1 - k0) <= 131071.

    RAW: a describes the operand itself, whose digits are made here from its exponents.
    """
    c0 = tl.zeros((BM, BN), tl.int32)
    if S > 1:
        c1 = tl.zeros((BM, BN), tl.int32)
        c2 = tl.zeros((BM, BN), tl.int32)
    if S > 2:
        c3 = tl.zeros((BM, BN), tl.int32)
    if S > 3:
        c4 = tl.zeros((BM, BN), tl.int32)
    for k in range(k0, k1, BK):
        if RAW:
            q = quantized(a.load([row_a, k]).to(tl.float32), exponent_a)
            if S > 3:
                x3, q = low_digit(q)
            if S > 2:
                x2, q = low_digit(q)
            if S > 1:
                x1, q = low_digit(q)
            x0 = q.to(tl.int8)
        else:
            x0 = a.load([row_a, k])
        y0 = b.load([row_b, k]).T
        c0 = digit_dot(x0, y0, c0, WINDOW16)
        if S > 1:
            x1 = x1.to(tl.int8) if RAW else a.load([row_a + plane_a, k])
            y1 = b.load([row_b + plane_b, k]).T
            c1 = digit_dot(x0, y1, c1, WINDOW16)
            c1 = digit_dot(x1, y0, c1, WINDOW16)
            c2 = digit_dot(x1, y1, c2, WINDOW16)
        if S > 2:
            x2 = x2.to(tl.int8) if RAW else a.load([row_a + 2 * plane_a, k])
            y2 = b.load([row_b + 2 * plane_b, k]).T
            c2 = digit_dot(x0, y2, c2, WINDOW16)
            c2 = digit_dot(x2, y0, c2, WINDOW16)
            c3 = digit_dot(x1, y2, c3, WINDOW16)
            c3 = digit_dot(x2, y1, c3, WINDOW16)
        if S > 3:
            x3 = x3.to(tl.int8) if RAW else a.load([row_a + 3 * plane_a, k])
            y3 = b.load([row_b + 3 * plane_b, k]).T
            c3 = digit_dot(x0, y3, c3, WINDOW16)
            c3 = digit_dot(x3, y0, c3, WINDOW16)
            c4 = digit_dot(x1, y3, c4, WINDOW16)
            c4 = digit_dot(x2, y2, c4, WINDOW16)
            c4 = digit_dot(x3, y1, c4, WINDOW16)
    total = c0.to(tl.int64)
    if S > 1:
        total = (((total << 8) + c1) << 8) + c2
    if S > 2:
        total = (total << 8) + c3
    if S > 3:
        total = (total << 8) + c4
    return total


@triton.jit
def sign_class(v):
    """v if it is not finite, else its sign: what decides whether an output is finite, whatever the sizes."""
    finite = (v.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    sign = (v > 0).to(tl.float32) - (v < 0).to(tl.float32)
    return tl.where(finite, sign, v).to(tl.float16)


@triton.jit
def with_nonfinite(
    r, a, b, batch, rows, cols, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, BK: tl.constexpr
):  # fmt: skip
    """r where the dot product of sign classes is finite, that dot product elsewhere. No order changes which."""
    pa = a + batch.to(tl.int64) * stride_ab + rows.to(tl.int64)[:, None] * stride_am
    pb = b + batch.to(tl.int64) * stride_bb + cols.to(tl.int64)[None, :] * stride_bn
    classes = tl.zeros(r.shape, tl.float32)
    for k in tl.range(0, K, BK, num_stages=1):
        ks = k + tl.arange(0, BK)
        x = tl.load(pa + ks.to(tl.int64)[None, :] * stride_ak, mask=(rows < M)[:, None] & (ks < K)[None, :], other=0.0)
        y = tl.load(pb + ks.to(tl.int64)[:, None] * stride_bk, mask=(ks < K)[:, None] & (cols < N)[None, :], other=0.0)
        classes = tl.dot(sign_class(x.to(tl.float32)), sign_class(y.to(tl.float32)), classes, out_dtype=tl.float32)
    finite = (classes.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    return tl.where(finite, r, classes)


@triton.jit
def finish(
    r, scale_a, scale_b, bias, c, a, b, batch, batch_a, batch_b, rows, cols, M, N, K,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    S: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """From RN32(P') to the stored result: exponents, non-finite elements, bias, output type."""
    sa = tl.load(scale_a + batch_a * M + rows, mask=rows < M, other=0)
    sb = tl.load(scale_b + batch_b * N + cols, mask=cols < N, other=0)
    shift: tl.constexpr = 8 * (S - 2) if S > 2 else 0
    r = ldexp(r, (sa >> 1)[:, None] + (sb >> 1)[None, :] + shift)
    if tl.max(sa & 1, 0) + tl.max(sb & 1, 0) > 0:
        r = with_nonfinite(r, a, b, batch, rows, cols, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk,
                           stride_bn, 32)  # fmt: skip
    store_result(r, bias, c, batch, rows, cols, M, N, stride_cb, stride_cm, stride_cn, BIAS)


@triton.jit
def fixed_kernel(
    digits_a, digits_b, scale_a, scale_b, bias, c, work, work_plane, a, b, M, N, K, Kpad, BATCH, BATCH_A, BATCH_B,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, SPLITS: tl.constexpr, SPAN: tl.constexpr, WINDOW: tl.constexpr, WIDE: tl.constexpr,
    WINDOW16: tl.constexpr, RAW: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Persistent over (batch, tile, split). digits: descriptors over (S * batch * rows, Kpad) in blocks (BM | BN, BK).

    A split covers SPAN of K in int32 windows of WINDOW. SPLITS > 1: P' is added to `work`, (words, batch, M, N) int64,
    for finish_kernel; WIDE: as two words, of weight 1 and 2**32.
    """
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for item in tl.range(tl.program_id(0), BATCH * tiles * SPLITS, PROGRAMS):
        batch = item // (tiles * SPLITS)
        split = (item // tiles) % SPLITS
        pm, pn = tile_of(item % tiles, M, N, BM, BN, GROUP)
        batch_a, batch_b = batch % BATCH_A, batch % BATCH_B
        row_a, row_b = batch_a * M + pm * BM, batch_b * N + pn * BN
        plane_a, plane_b = BATCH_A * M, BATCH_B * N
        rows = pm * BM + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        exponent_a = rows
        if RAW:
            exponent_a = tl.load(scale_a + batch_a * M + rows, mask=rows < M, other=0) >> 1
        if SPLITS == 1 and SPAN <= WINDOW:
            total = digit_sum(digits_a, digits_b, row_a, row_b, plane_a, plane_b, exponent_a, 0, Kpad, S, BM, BN, BK,
                              WINDOW16, RAW)  # fmt: skip
        else:
            k0 = split * SPAN
            k1 = min(k0 + SPAN, Kpad)
            total = tl.zeros((BM, BN), tl.int64)
            for k in tl.range(k0, k1, WINDOW, num_stages=1):
                total += digit_sum(digits_a, digits_b, row_a, row_b, plane_a, plane_b, exponent_a, k, min(k + WINDOW, k1), S,
                                   BM, BN, BK, WINDOW16, RAW)  # fmt: skip
        if SPLITS == 1:
            finish(total.to(tl.float32), scale_a, scale_b, bias, c, a, b, batch, batch_a, batch_b, rows, cols, M, N, K,
                   stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, S, BIAS)  # fmt: skip
        else:
            at = work + batch.to(tl.int64) * M * N + rows.to(tl.int64)[:, None] * N + cols[None, :]
            mask = (rows < M)[:, None] & (cols < N)[None, :]
            if WIDE:
                tl.atomic_add(at, total & 0xFFFFFFFF, mask=mask)
                tl.atomic_add(at + work_plane, total >> 32, mask=mask)
            else:
                tl.atomic_add(at, total, mask=mask)


@triton.jit
def rounded(low, high, WIDE: tl.constexpr):
    """RN32 of low, or of low + 2**32 * high: one rounding, the bits below the significand kept as a sticky bit."""
    if WIDE:
        high += low >> 32
        low = low & 0xFFFFFFFF
        small = (high >= -(1 << 30)) & (high < (1 << 30))
        near = ((tl.where(small, high, 0) << 32) + low).to(tl.float32)
        far = ((high << 1) | (low != 0).to(tl.int64)).to(tl.float32) * 2147483648.0
        return tl.where(small, near, far)
    return low.to(tl.float32)


@triton.jit
def finish_kernel(
    scale_a, scale_b, bias, c, work, work_plane, a, b, M, N, K, BATCH, BATCH_A, BATCH_B,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The result from the summed splits."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, 1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    at = work + batch.to(tl.int64) * M * N + rows.to(tl.int64)[:, None] * N + cols[None, :]
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    low = tl.load(at, mask=mask, other=0)
    high = low
    if WIDE:
        high = tl.load(at + work_plane, mask=mask, other=0)
    finish(rounded(low, high, WIDE), scale_a, scale_b, bias, c, a, b, batch, batch % BATCH_A, batch % BATCH_B, rows, cols,
           M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, S,
           BIAS)  # fmt: skip


CONFIGURATIONS = {
    1: (Configuration(128, 256, 128, 8, 3), Configuration(64, 64, 128, 4, 4)),
    2: (Configuration(128, 128, 128, 8, 3), Configuration(64, 64, 128, 4, 3)),
    3: (Configuration(128, 64, 128, 8, 3), Configuration(64, 64, 64, 4, 3)),
    4: (Configuration(128, 64, 128, 8, 2), Configuration(64, 64, 64, 4, 3)),
}
NARROW = {
    16: Configuration(32, 16, 256, 4, 4, swap=True, GROUP=1),
    32: Configuration(64, 32, 128, 4, 4, swap=True, GROUP=1),
    64: Configuration(64, 64, 128, 4, 3, swap=True, GROUP=1),
}
WINDOW16_CONFIGURATIONS = (Configuration(64, 64, 64, 4, 2),)


def fixed(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, S: int, b_digits: Digits | None) -> None:
    """a (Ba, M, K) @ b (Bb, K, N) into out (B, M, N) in S digits, K > 0, nothing empty; fp32, bf16 or fp16.

    b_digits: kept digits of b's columns, or their scales alone.
    """
    K, Kpad, device = a.shape[2], padded(a.shape[2]), out.device
    window16 = engine_for(device) == "window16"
    c = pick(
        WINDOW16_CONFIGURATIONS if window16 else CONFIGURATIONS[S],
        {} if window16 else NARROW,
        out,
        3 * S if window16 else S,
    )
    columns = b.transpose(1, 2)
    raw = b_digits is not None and not b_digits.planes.numel() and c.swap and len(b) == 1 and readable(columns[0])
    if b_digits is None or not (raw or b_digits.planes.numel()):
        b_digits = quantize(columns, S, None if b_digits is None else b_digits.scale)
    first, second, by = (a, quantize(a, S)), (columns, b_digits), int(bias is not None)
    if c.swap:
        first, second, by, out = second, first, 2 * by, out.transpose(1, 2)
    batch, M, N = out.shape
    tiles = batch * triton.cdiv(M, c.BM) * triton.cdiv(N, c.BN)
    splits, span = _splits(c, tiles, Kpad, S, processors(device))
    wide = Kpad > LONGEST_INT64[S]
    work = out.new_zeros((1 + wide, batch, M, N), dtype=torch.int64) if splits > 1 else first[1].scale
    da = describe(columns[0], [c.BM, c.BK]) if raw else describe_digits(first[1], c.BM, c.BK)
    db = describe_digits(second[1], c.BN, c.BK)
    bm, bn, bk = strides(second[0])
    common = (first[1].scale, second[1].scale, out if bias is None else bias, out, work, batch * M * N, first[0], second[0],
              M, N, K)  # fmt: skip
    sizes = (batch, len(first[0]), len(second[0]), *strides(first[0]), bm, bk, bn, *out.stride())
    programs = tiles * splits if c.swap else min(tiles * splits, processors(device))
    launch(fixed_kernel, (programs,), da, db, *common, Kpad, *sizes, S=S, BM=c.BM, BN=c.BN, BK=c.BK, GROUP=c.GROUP,
           PROGRAMS=programs, SPLITS=splits, SPAN=span, WINDOW=LONGEST_INT32 // S // c.BK * c.BK, WIDE=wide,
           WINDOW16=window16, RAW=raw, BIAS=by, num_warps=c.num_warps, num_stages=c.num_stages)  # fmt: skip
    if splits > 1:
        launch(finish_kernel, (batch * triton.cdiv(M, 64) * triton.cdiv(N, 64),), *common, *sizes, S=S, BM=64, BN=64,
               WIDE=wide, BIAS=by)  # fmt: skip


def _splits(c: Configuration, tiles: int, Kpad: int, S: int, processors: int) -> tuple[int, int]:
    """Into how many parts K is cut, and their length: as many as int64 needs, and more where tiles leave the GPU idle."""
    splits = triton.cdiv(Kpad, LONGEST_INT64[S])
    shortest = 32768 if c.swap else 8 * c.BK
    splits = max(splits, min(processors // tiles, Kpad // shortest))
    span = triton.cdiv(triton.cdiv(Kpad, splits), c.BK) * c.BK
    return triton.cdiv(Kpad, span), span
