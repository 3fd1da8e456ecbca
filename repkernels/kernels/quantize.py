"""Fixed-point digits of vectors along K: scale, round, split (SPEC.md, "Fixed-point digits").

Rows that lie along K are read once. Vectors that lie across memory, and long ones, take a pass for the scale and a
pass for the digits. Maxima are taken of bit patterns as integers, which has no order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.digits import Digits, padded
from repkernels.kernels.arith import (
    LAST_SIGNIFICAND,
    low_digit,
    magnitude,
    quantized,
    scale_exponent,
)
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.overlap import begin
from repkernels.kernels.sizes import cdiv, next_power_of_2


@triton.jit
def store_digits(v, e, planes, plane_stride, rows, ks, R, Kpad, S: tl.constexpr):
    """Splits fp32 v (rows, ks) with exponents e (rows) into S planes of int8; what is not finite becomes 0."""
    q = quantized(v, e, S)
    at = planes + rows.to(tl.int64)[:, None] * Kpad + ks[None, :]
    mask = (rows < R)[:, None] & (ks < Kpad)[None, :]
    plane_stride = tl.cast(plane_stride, tl.int64)
    for i in tl.static_range(S - 1):
        d, q = low_digit(q)
        tl.store(at + (S - 1 - i) * plane_stride, d, mask=mask)
    tl.store(at, q.to(tl.int8), mask=mask)


@triton.jit(do_not_specialize=["R", "per_batch"])
def rows_kernel(
    v, planes, scale, R, K, Kpad, per_batch, stride_b, stride_r, plane_stride,
    S: tl.constexpr, LAST: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Whole rows along contiguous K in registers."""
    begin(OVERLAP)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    ks = tl.arange(0, BK)
    at = v + (rows // per_batch).to(tl.int64) * stride_b + (rows % per_batch).to(tl.int64) * stride_r
    x = tl.load(at[:, None] + ks[None, :], mask=(rows < R)[:, None] & (ks < K)[None, :], other=0.0).to(tl.float32)
    bits = magnitude(x)
    finite = bits < 0x7F800000
    e = scale_exponent(tl.max(tl.where(finite, bits, 0), 1), S, LAST)
    flag = tl.max((~finite).to(tl.int32), 1)
    store_digits(x, e, planes, plane_stride, rows, ks, R, Kpad, S)
    tl.store(scale + rows, 2 * e + flag, mask=rows < R)


@triton.jit(do_not_specialize=["per_batch"])
def extent_kernel(
    v, extent, R, K, per_batch, stride_b, stride_r, stride_k, BR: tl.constexpr, BK: tl.constexpr, STEPS,
):  # fmt: skip
    """The largest finite magnitude of each vector, as bits, into extent[r];
    whether any is not finite into extent[R + r]."""
    parts = tl.cdiv(K, BK * STEPS)
    rows = (tl.program_id(0) // parts) * BR + tl.arange(0, BR)
    part = tl.program_id(0) % parts
    at = v + (rows // per_batch).to(tl.int64) * stride_b + (rows % per_batch).to(tl.int64) * stride_r
    largest = tl.zeros((BR,), tl.int32)
    flag = tl.zeros((BR,), tl.int32)
    for step in range(STEPS):
        ks = (part * STEPS + step) * BK + tl.arange(0, BK)
        mask = (rows < R)[:, None] & (ks < K)[None, :]
        bits = magnitude(
            tl.load(at[:, None] + ks.to(tl.int64)[None, :] * stride_k, mask=mask, other=0.0).to(tl.float32)
        )
        finite = bits < 0x7F800000
        largest = tl.maximum(largest, tl.max(tl.where(finite, bits, 0), 1))
        flag = tl.maximum(flag, tl.max((~finite).to(tl.int32), 1))
    tl.atomic_max(extent + rows, largest, mask=rows < R)
    tl.atomic_max(extent + R + rows, flag, mask=(rows < R) & (flag != 0))


@triton.jit(do_not_specialize=["per_batch"])
def digits_kernel(
    v, extent, planes, scale, R, K, Kpad, per_batch, stride_b, stride_r, stride_k, plane_stride,
    S: tl.constexpr, LAST: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Digits of a tile, with scales from the extents, or from `scale` itself where it is known already (SCALED)."""
    parts = tl.cdiv(Kpad, BK)
    rows = (tl.program_id(0) // parts) * BR + tl.arange(0, BR)
    part = tl.program_id(0) % parts
    ks = part * BK + tl.arange(0, BK)
    if SCALED:
        e = tl.load(scale + rows, mask=rows < R, other=0) >> 1
    else:
        e = scale_exponent(tl.load(extent + rows, mask=rows < R, other=0), S, LAST)
        flag = tl.load(extent + R + rows, mask=rows < R, other=0)
        if part == 0:
            tl.store(scale + rows, 2 * e + flag, mask=rows < R)
    at = v + (rows // per_batch).to(tl.int64) * stride_b + (rows % per_batch).to(tl.int64) * stride_r
    mask = (rows < R)[:, None] & (ks < K)[None, :]
    x = tl.load(at[:, None] + ks.to(tl.int64)[None, :] * stride_k, mask=mask, other=0.0).to(tl.float32)
    store_digits(x, e, planes, plane_stride, rows, ks, R, Kpad, S)


@triton.jit(do_not_specialize=["R"])
def scale_kernel(extent, scale, R, S: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr):
    """Scales alone, from the extents."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = scale_exponent(tl.load(extent + rows, mask=rows < R, other=0), S, LAST)
    tl.store(scale + rows, 2 * e + tl.load(extent + R + rows, mask=rows < R, other=0), mask=rows < R)


LONGEST_ROW = 16384  # elements of K that one program holds in registers
ROW_TILE = 4096  # elements of a program over short rows
ACROSS_TILE = (64, 128)  # vectors and elements of K of a program where vectors lie across memory
ALONG_TILE = (8, 512)  # where they lie along it


def quantize(
    v: Tensor, digits: int, scale: Tensor | None = None, planes: bool = True, rows: int | None = None
) -> Digits:
    """Digits of the vectors of v (B, R, K) along its last axis, any strides; fp32, bf16 or fp16.

    With `scale` (B, R), as an earlier call returned it, only the digits are made; with planes=False only the scales.
    rows: room for that many rows in each plane of a single batch, those past R left unset.
    """
    batch, per_batch, K = v.shape
    R, Kpad = batch * per_batch, padded(K)
    out = v.new_empty((digits, batch, rows or per_batch, Kpad) if planes else (0,), dtype=torch.int8)
    if K == 0:
        return Digits(out, v.new_zeros((batch, per_batch), dtype=torch.int32) if scale is None else scale)
    known = scale is not None
    if scale is None:
        scale = v.new_empty((batch, per_batch), dtype=torch.int32)
    stride_b, stride_r, stride_k = v.stride()
    plane_stride = (rows or R) * Kpad
    common: dict[str, Any] = {"S": digits, "LAST": LAST_SIGNIFICAND[digits]}
    if stride_k == 1 and K <= LONGEST_ROW and planes and not known:
        BK = max(next_power_of_2(Kpad), 64)
        BR = max(1, ROW_TILE // BK)
        few = R <= 64
        num_warps = 4 if BK < 4096 else (32 if BK > 8192 else 16) if few else (16 if BK > 8192 else 8)
        overlap = few and can_overlap(v.device)
        launch(rows_kernel, (cdiv(R, BR),), v, out, scale, R, K, Kpad, per_batch, stride_b, stride_r,
               plane_stride, BR=BR, BK=BK, OVERLAP=overlap, overlap=overlap, num_warps=num_warps,
               **common)  # fmt: skip
        return Digits(out, scale)
    BR, BK = ALONG_TILE if stride_k == 1 else ACROSS_TILE
    extent = scale
    if not known:
        extent = v.new_zeros((2 * R,), dtype=torch.int32)
        steps = 8 if K > 8 * BK else 1
        launch(extent_kernel, (cdiv(R, BR) * cdiv(K, BK * steps),), v, extent, R, K, per_batch, stride_b,
               stride_r, stride_k, BR=BR, BK=BK, STEPS=steps)  # fmt: skip
    if planes:
        launch(digits_kernel, (cdiv(R, BR) * cdiv(Kpad, BK),), v, extent, out, scale, R, K, Kpad,
               per_batch, stride_b, stride_r, stride_k, plane_stride, BR=BR, BK=BK, SCALED=known, **common)  # fmt: skip
    elif not known:
        launch(scale_kernel, (cdiv(R, 1024),), extent, scale, R, BLOCK=1024, **common)
    return Digits(out, scale)
