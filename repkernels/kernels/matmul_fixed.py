"""`fixed` contractions on any GPU: exact integer sums of digit products (SPEC.md, "fixed").

The sums are exact, so tiles, the order of k, splits and engines are free: the configuration follows shape and device.
Engine "int8" uses int8 tensor cores; "window16" multiplies digits as fp16 integers and drains the fp32 accumulator to
int32 after every BK terms, before the sum of magnitudes can pass 2**24.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.digits import Digits, padded
from repkernels.kernels.arith import tile_of
from repkernels.kernels.configuration import Configuration, pick, pick_narrow, processors
from repkernels.kernels.engine import engine_for
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_finish import (
    LONGEST_INT32,
    LONGEST_INT64,
    UNSPECIALISED,
    finish,
    finish_splits,
    joined,
)
from repkernels.kernels.matmul_fixed_hopper import hopper, hopper_fits, on_hopper
from repkernels.kernels.matmul_fixed_narrow import NARROW, narrow
from repkernels.kernels.operand import describe_digits, strides
from repkernels.kernels.quantize import quantize
from repkernels.kernels.sizes import cdiv

CONFIGURATIONS = {
    1: (Configuration(128, 256, 128, 8, 4), Configuration(64, 64, 128, 4, 4)),
    2: (
        Configuration(128, 128, 128, 8, 3, GROUP=16),
        Configuration(64, 128, 128, 4, 4),
        Configuration(64, 64, 128, 4, 4),
    ),
    3: (Configuration(128, 64, 128, 8, 3), Configuration(64, 64, 128, 4, 3), Configuration(64, 64, 64, 4, 3)),
    4: (Configuration(128, 64, 128, 8, 2), Configuration(64, 64, 128, 4, 2), Configuration(64, 64, 64, 4, 3)),
}
WINDOW16_CONFIGURATIONS = (Configuration(64, 64, 64, 4, 2),)


@triton.jit
def digit_dot(x, y, acc, WINDOW16: tl.constexpr):
    """acc + x @ y for int8 digits, exact in int32."""
    if WINDOW16:
        return acc + tl.dot(x.to(tl.float16), y.to(tl.float16), out_dtype=tl.float32).to(tl.int32)
    return tl.dot(x, y, acc, out_dtype=tl.int32)


@triton.jit
def digit_sum(
    a, b, row_a, row_b, plane_a, plane_b, k0, k1,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WINDOW16: tl.constexpr,
):  # fmt: skip
    """P' over k0..k1 as int64, from int32 sums of the products of equal weight; S * (k1 - k0) <= 131071."""
    c0 = tl.zeros((BM, BN), tl.int32)
    c1, c2, c3, c4 = c0, c0, c0, c0
    for k in range(k0, k1, BK):
        x0 = a.load([row_a, k])
        y0 = b.load([row_b, k]).T
        c0 = digit_dot(x0, y0, c0, WINDOW16)
        if S > 1:
            x1 = a.load([row_a + plane_a, k])
            y1 = b.load([row_b + plane_b, k]).T
            c1 = digit_dot(x0, y1, c1, WINDOW16)
            c1 = digit_dot(x1, y0, c1, WINDOW16)
            c2 = digit_dot(x1, y1, c2, WINDOW16)
        if S > 2:
            x2 = a.load([row_a + 2 * plane_a, k])
            y2 = b.load([row_b + 2 * plane_b, k]).T
            c2 = digit_dot(x0, y2, c2, WINDOW16)
            c2 = digit_dot(x2, y0, c2, WINDOW16)
            c3 = digit_dot(x1, y2, c3, WINDOW16)
            c3 = digit_dot(x2, y1, c3, WINDOW16)
        if S > 3:
            x3 = a.load([row_a + 3 * plane_a, k])
            y3 = b.load([row_b + 3 * plane_b, k]).T
            c3 = digit_dot(x0, y3, c3, WINDOW16)
            c3 = digit_dot(x3, y0, c3, WINDOW16)
            c4 = digit_dot(x1, y3, c4, WINDOW16)
            c4 = digit_dot(x2, y2, c4, WINDOW16)
            c4 = digit_dot(x3, y1, c4, WINDOW16)
    return joined(c0, c1, c2, c3, c4, S)


@triton.jit(do_not_specialize=[*UNSPECIALISED, "Kpad", "SPLITS", "SPAN"])
def fixed_kernel(
    digits_a, digits_b, part, Kpad, SPLITS, SPAN, scale_a, scale_b, bias, c, a, b, M, N, K, BATCH, BATCH_A, BATCH_B,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, WINDOWS: tl.constexpr, WINDOW16: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Persistent over (batch, split, tile). digits: descriptors over (S * batch * rows, Kpad) in blocks (BM | BN, BK).

    A split covers SPAN of K, with WINDOWS in int32 windows of WINDOW. SPLIT: its P' goes to part,
    (SPLITS, batch, M, N) int64.
    """
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for item in tl.range(tl.program_id(0), BATCH * tiles * SPLITS, tl.num_programs(0)):
        batch = item // (tiles * SPLITS)
        split = (item // tiles) % SPLITS
        pm, pn = tile_of(item % tiles, M, N, BM, BN, GROUP)
        batch_a, batch_b = batch % BATCH_A, batch % BATCH_B
        row_a, row_b = batch_a * M + pm * BM, batch_b * N + pn * BN
        plane_a, plane_b = BATCH_A * M, BATCH_B * N
        k0 = split * SPAN
        k1 = min(k0 + SPAN, Kpad)
        if not WINDOWS:
            total = digit_sum(digits_a, digits_b, row_a, row_b, plane_a, plane_b, k0, k1, S, BM, BN, BK, WINDOW16)
        else:
            total = tl.zeros((BM, BN), tl.int64)
            for k in tl.range(k0, k1, WINDOW, num_stages=1):
                total += digit_sum(digits_a, digits_b, row_a, row_b, plane_a, plane_b, k, min(k + WINDOW, k1),
                                   S, BM, BN, BK, WINDOW16)  # fmt: skip
        rows = pm * BM + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        if not SPLIT:
            finish(total.to(tl.float32), scale_a, scale_b, bias, c, a, b, batch, batch_a, batch_b, rows, cols, M, N, K,
                   stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
                   S, BIAS)  # fmt: skip
        else:
            at = part + ((split * BATCH + batch).to(tl.int64) * M + rows.to(tl.int64)[:, None]) * N + cols[None, :]
            tl.store(at, total, mask=(rows < M)[:, None] & (cols < N)[None, :])


def fixed(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, S: int, b_digits: Digits | None) -> None:
    """a (Ba, M, K) @ b (Bb, K, N) into out (B, M, N) in S digits, K > 0, nothing empty; fp32, bf16 or fp16.

    b_digits: kept digits of b's columns, or their scales alone.
    """
    batch, M, N = out.shape
    Kpad, device = padded(a.shape[2]), out.device
    window16 = engine_for(device) == "window16"
    if b_digits is None or not b_digits.planes.numel():
        b_digits = quantize(b.transpose(1, 2), S, None if b_digits is None else b_digits.scale)
    few = pick_narrow(NARROW[S], M, N, device) if batch == 1 and not window16 and Kpad <= LONGEST_INT32 else None
    if few and (M <= 16 or few.tiles(M, N) >= processors(device) or not on_hopper(device)):
        narrow(few, a, b, bias, out, S, b_digits)
        return
    a_digits = quantize(a, S)
    element = 3 * S if window16 else S
    # Elsewhere than on Hopper a sum may pass through shared memory.
    c = pick(WINDOW16_CONFIGURATIONS if window16 else CONFIGURATIONS[S], out, element, 0 if on_hopper(device) else 4)
    tiles = batch * c.tiles(M, N)
    splits, span = _splits(c, tiles, Kpad, S, processors(device))
    part = out.new_empty((splits, batch, M, N) if splits > 1 else (1,), dtype=torch.int64)
    (ab, am, ak), (bb, bn, bk) = strides(a), strides(b.transpose(1, 2))
    sides = (a_digits.scale, b_digits.scale, out if bias is None else bias, out, a, b)
    arguments = (*sides, M, N, a.shape[2], batch, len(a), len(b), ab, am, ak, bb, bk, bn, *out.stride())
    common: dict[str, Any] = {"S": S, "BIAS": int(bias is not None)}
    if not window16 and on_hopper(device) and hopper_fits(c) and span * S <= LONGEST_INT32:
        everything = (part, Kpad, splits, span, *arguments)
        hopper(c, a_digits, b_digits, everything, tiles * splits, common | {"SPLIT": splits > 1})
    else:
        programs = min(tiles * splits, processors(device))
        window = LONGEST_INT32 // S // c.BK * c.BK
        launch(fixed_kernel, (programs,), describe_digits(a_digits, c.BM, c.BK), describe_digits(b_digits, c.BN, c.BK),
               part, Kpad, splits, span, *arguments, BM=c.BM, BN=c.BN, BK=c.BK, GROUP=c.GROUP, SPLIT=splits > 1,
               WINDOW=window, WINDOWS=span > window, WINDOW16=window16, num_warps=c.num_warps, num_stages=c.num_stages,
               **common)  # fmt: skip
    if splits > 1:
        finish_splits(part, arguments, Kpad, common)


def _splits(c: Configuration, tiles: int, Kpad: int, S: int, processors: int) -> tuple[int, int]:
    """Into how many parts K is cut, and their length: as int64 needs, and more where tiles leave the GPU idle."""
    splits = max(cdiv(Kpad, LONGEST_INT64[S]), min(processors // tiles, Kpad // (8 * c.BK)))
    span = cdiv(cdiv(Kpad, splits), c.BK) * c.BK
    return cdiv(Kpad, span), span
