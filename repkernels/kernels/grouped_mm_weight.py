"""Gradients of the matrices of grouped products, on a GPU (SPEC.md, "Grouped products"): rows of a group contracted.

Where a group begins and ends is read on the device. `fixed` makes its digits as it goes: scales belong to a group's
part of a column, and a column is read by as many programs as there are tiles beside it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.arith import LAST_SIGNIFICAND, low_digit, magnitude, quantized, scale_exponent, store_result
from repkernels.kernels.engine import engine_for
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed import digit_dot
from repkernels.kernels.matmul_fixed_finish import LONGEST_INT32, LONGEST_INT64, finish, joined
from repkernels.kernels.matmul_native import lacks_bfloat16
from repkernels.kernels.matmul_ordered import CHUNK, chain
from repkernels.kernels.sizes import cdiv

BM, BN, BK = 64, 64, 32


@triton.jit
def group_rows(offs, g, T):
    """The first row of group g, and their number."""
    start = tl.load(offs + tl.maximum(g - 1, 0)).to(tl.int32)
    start = tl.minimum(tl.where(g > 0, start, 0), T)
    return start, tl.maximum(tl.minimum(tl.load(offs + g).to(tl.int32), T) - start, 0)


@triton.jit
def tile_at(M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Group, rows and columns of this program's tile."""
    across = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * across
    tile = tl.program_id(0) % tiles
    rows = tile // across * BM + tl.arange(0, BM)
    return tl.program_id(0) // tiles, rows, tile % across * BN + tl.arange(0, BN)


@triton.jit
def loaded(p, others, ks, stride_k, size, k1):
    """Elements (others, ks), +0 outside."""
    mask = (others < size)[:, None] & (ks < k1)[None, :]
    return tl.load(p[:, None] + ks.to(tl.int64)[None, :] * stride_k, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["T"])
def weight_native_kernel(
    a, b, offs, c, T, M, N, stride_at, stride_am, stride_bt, stride_bn, stride_cg, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    g, rows, cols = tile_at(M, N, BM, BN)
    start, length = group_rows(offs, g, T)
    pa = a + start.to(tl.int64) * stride_at + rows.to(tl.int64) * stride_am
    pb = b + start.to(tl.int64) * stride_bt + cols.to(tl.int64) * stride_bn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, length, BK):
        ks = k + tl.arange(0, BK)
        x = loaded(pa, rows, ks, stride_at, M, length)
        y = loaded(pb, cols, ks, stride_bt, N, length)
        acc = tl.dot(x, y.T, acc)
    store_result(acc, c, c, g, rows, cols, M, N, stride_cg, stride_cm, stride_cn, 0)


@triton.jit(do_not_specialize=["T"])
def weight_ordered_kernel(
    a, b, offs, c, T, M, N, stride_at, stride_am, stride_bt, stride_bn, stride_cg, stride_cm, stride_cn,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    g, rows, cols = tile_at(M, N, BM, BN)
    start, length = group_rows(offs, g, T)
    pa = a + start.to(tl.int64) * stride_at + rows.to(tl.int64)[:, None] * stride_am
    pb = b + start.to(tl.int64) * stride_bt + cols.to(tl.int64)[None, :] * stride_bn
    zero = tl.zeros((BM, BN), tl.float32)
    total = chain(pa, pb, zero, 0, min(length, CHUNK), rows, cols, M, N, stride_at, stride_bt, BK, False)
    for k in tl.range(CHUNK, length, CHUNK, num_stages=1):
        total += chain(pa, pb, zero, k, min(length, k + CHUNK), rows, cols, M, N, stride_at, stride_bt, BK, False)
    store_result(total, c, c, g, rows, cols, M, N, stride_cg, stride_cm, stride_cn, 0)


@triton.jit(do_not_specialize=["T"])
def weight_outer_kernel(
    a, b, offs, c, T, M, N, stride_at, stride_am, stride_bt, stride_bn, stride_cg, stride_cm, stride_cn,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The same chains written out, as in grouped_mm.py."""
    g, rows, cols = tile_at(M, N, BM, BN)
    start, length = group_rows(offs, g, T)
    pa = a + start.to(tl.int64) * stride_at + tl.minimum(rows, M - 1).to(tl.int64) * stride_am
    pb = b + start.to(tl.int64) * stride_bt + tl.minimum(cols, N - 1).to(tl.int64) * stride_bn
    total = tl.zeros((BM, BN), TYPE)
    for k0 in range(0, length, CHUNK):
        acc = tl.zeros((BM, BN), TYPE)
        for _ in range(k0, min(length, k0 + CHUNK)):
            x = tl.load(pa).to(TYPE)
            y = tl.load(pb).to(TYPE)
            acc = tl.fma(tl.broadcast_to(x[:, None], (BM, BN)), tl.broadcast_to(y[None, :], (BM, BN)), acc)
            pa += stride_at
            pb += stride_bt
        total = tl.where(k0 == 0, acc, total + acc)
    store_result(total, c, c, g, rows, cols, M, N, stride_cg, stride_cm, stride_cn, 0)


@triton.jit(do_not_specialize=["T"])
def weight_scale_kernel(
    v, offs, scale, T, M, stride_t, stride_m, S: tl.constexpr, LAST: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """scale (G, M): 2 * e + flag of each group's part of each column of v (T, M)."""
    tiles = tl.cdiv(M, BM)
    g = tl.program_id(0) // tiles
    rows = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    start, length = group_rows(offs, g, T)
    p = v + start.to(tl.int64) * stride_t + rows.to(tl.int64) * stride_m
    largest = tl.zeros((BM,), tl.int32)
    flag = tl.zeros((BM,), tl.int32)
    for k in range(0, length, BK):
        bits = magnitude(loaded(p, rows, k + tl.arange(0, BK), stride_t, M, length).to(tl.float32))
        finite = bits < 0x7F800000
        largest = tl.maximum(largest, tl.max(tl.where(finite, bits, 0), 1))
        flag = tl.maximum(flag, tl.max((~finite).to(tl.int32), 1))
    tl.store(scale + g * M + rows, 2 * scale_exponent(largest, S, LAST) + flag, mask=rows < M)


@triton.jit
def digits_of(v, e, S: tl.constexpr):
    """The S digits of fp32 v (rows, k), the most significant first; those that are missing repeat it."""
    q = quantized(v, e, S)
    d3, d2, d1 = q.to(tl.int8), q.to(tl.int8), q.to(tl.int8)
    if S > 3:
        d3, q = low_digit(q)
    if S > 2:
        d2, q = low_digit(q)
    if S > 1:
        d1, q = low_digit(q)
    return q.to(tl.int8), d1, d2, d3


@triton.jit(do_not_specialize=["T"])
def weight_fixed_kernel(
    a, b, scale_a, scale_b, offs, c, T, M, N, stride_at, stride_am, stride_bt, stride_bn, stride_cg, stride_cm,
    stride_cn, S: tl.constexpr, WINDOW: tl.constexpr, WINDOW16: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    g, rows, cols = tile_at(M, N, BM, BN)
    start, length = group_rows(offs, g, T)
    a += start.to(tl.int64) * stride_at
    b += start.to(tl.int64) * stride_bt
    pa, pb = a + rows.to(tl.int64) * stride_am, b + cols.to(tl.int64) * stride_bn
    ea = tl.load(scale_a + g * M + rows, mask=rows < M, other=0) >> 1
    eb = tl.load(scale_b + g * N + cols, mask=cols < N, other=0) >> 1
    total = tl.zeros((BM, BN), tl.int64)
    for window in tl.range(0, length, WINDOW, num_stages=1):
        c0 = tl.zeros((BM, BN), tl.int32)
        c1, c2, c3, c4 = c0, c0, c0, c0
        for k in tl.range(window, min(window + WINDOW, length), BK, num_stages=1):
            ks = k + tl.arange(0, BK)
            x0, x1, x2, x3 = digits_of(loaded(pa, rows, ks, stride_at, M, length).to(tl.float32), ea, S)
            y0, y1, y2, y3 = digits_of(loaded(pb, cols, ks, stride_bt, N, length).to(tl.float32), eb, S)
            c0 = digit_dot(x0, y0.T, c0, WINDOW16)
            if S > 1:
                c1 = digit_dot(x0, y1.T, c1, WINDOW16)
                c1 = digit_dot(x1, y0.T, c1, WINDOW16)
                c2 = digit_dot(x1, y1.T, c2, WINDOW16)
            if S > 2:
                c2 = digit_dot(x0, y2.T, c2, WINDOW16)
                c2 = digit_dot(x2, y0.T, c2, WINDOW16)
                c3 = digit_dot(x1, y2.T, c3, WINDOW16)
                c3 = digit_dot(x2, y1.T, c3, WINDOW16)
            if S > 3:
                c3 = digit_dot(x0, y3.T, c3, WINDOW16)
                c3 = digit_dot(x3, y0.T, c3, WINDOW16)
                c4 = digit_dot(x1, y3.T, c4, WINDOW16)
                c4 = digit_dot(x2, y2.T, c4, WINDOW16)
                c4 = digit_dot(x3, y1.T, c4, WINDOW16)
        total += joined(c0, c1, c2, c3, c4, S)
    finish(total.to(tl.float32), scale_a, scale_b, c, c, a, b, g, g, g, rows, cols, M, N, length, 0, stride_am,
           stride_at, 0, stride_bt, stride_bn, stride_cg, stride_cm, stride_cn, S, 0)  # fmt: skip


def grouped_mm_weight(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, contract: str) -> None:
    """out (G, K, N): a's rows (T, K) of group g, transposed, @ b's (T, N); +0 of an empty group. Any strides."""
    (T, M), N, G = a.shape, b.shape[1], len(out)
    if out.numel() == 0:
        return
    if T == 0:
        out.zero_()
        return
    grid = (G * cdiv(M, BM) * cdiv(N, BN),)
    steps = (T, M, N, *a.stride(), *b.stride(), *out.stride())
    common: dict[str, Any] = {"BM": BM, "BN": BN}
    if contract == "ordered" and (out.dtype == torch.float64 or torch.version.hip is not None):
        kind = tl.float64 if out.dtype == torch.float64 else tl.float32
        launch(weight_outer_kernel, grid, a, b, offs, out, *steps, CHUNK=CHUNK, TYPE=kind, **common)
    elif contract == "ordered":
        launch(weight_ordered_kernel, grid, a, b, offs, out, *steps, CHUNK=CHUNK, BK=BK, **common)
    elif contract == "native":
        if a.dtype == torch.bfloat16 and lacks_bfloat16(a.device):
            raise NotImplementedError(f"contract: native has no bfloat16 tensor cores on {a.device}; use fixed16")
        launch(weight_native_kernel, grid, a, b, offs, out, *steps, BK=2 * BK, **common)
    else:
        S = int(contract[5:]) // 8
        if T > LONGEST_INT64[S]:
            raise NotImplementedError(f"mat_a: {T} rows are too many for {S} digits; at most {LONGEST_INT64[S]}")
        scales = [_scales(v, offs, G, S) for v in (a, b)]
        launch(weight_fixed_kernel, grid, a, b, *scales, offs, out, *steps, S=S, WINDOW=LONGEST_INT32 // S // BK * BK,
               WINDOW16=engine_for(a.device) == "window16", BK=BK, **common)  # fmt: skip


def _scales(v: Tensor, offs: Tensor, G: int, S: int) -> Tensor:
    T, M = v.shape
    scale = v.new_empty((G, M), dtype=torch.int32)
    launch(weight_scale_kernel, (G * cdiv(M, BM),), v, offs, scale, T, M, *v.stride(), S=S, LAST=LAST_SIGNIFICAND[S],
           BM=BM, BK=BK)  # fmt: skip
    return scale
