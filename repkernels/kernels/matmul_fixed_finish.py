"""From exact integer sums to stored results: one rounding, exponents, bias (SPEC.md, "fixed")."""

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from repkernels.kernels.arith import ldexp, store_result, tile_of
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.matmul_nonfinite import with_nonfinite
from repkernels.kernels.sizes import cdiv

# P' fits int64 up to this K, by number of digits; an int32 sum of t products per k fits up to K = 131071 / t.
LONGEST_INT64 = (0, 2**48, 2**33, 2**25, 2**17)
LONGEST_INT32 = 131071

# Sizes that no kernel is compiled anew for: they decide no vector access but those of rare non-finite elements. (Steps
# between batches do: without their divisor no pointer is known to be aligned.)
UNSPECIALISED = ["M", "K", "BATCH", "BATCH_A", "BATCH_B", "stride_ab", "stride_am", "stride_bb", "stride_bn"]


@triton.jit
def joined(c0, c1, c2, c3, c4, S: tl.constexpr):
    """P' as int64 from the int32 sums of the products of equal weight, of which S + 1 count (one for S = 1)."""
    total = c0.to(tl.int64)
    if S > 1:
        total = (((total << 8) + c1) << 8) + c2
    if S > 2:
        total = (total << 8) + c3
    if S > 3:
        total = (total << 8) + c4
    return total


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
def rounded(low, high):
    """RN32 of low + 2**32 * high: one rounding, the bits below what fits kept as a sticky bit."""
    high += low >> 32
    low = low & 0xFFFFFFFF
    small = (high >= -(1 << 30)) & (high < (1 << 30))
    near = ((tl.where(small, high, 0) << 32) + low).to(tl.float32)
    far = ((high << 1) | (low != 0).to(tl.int64)).to(tl.float32) * 2147483648.0
    return tl.where(small, near, far)


@triton.jit(do_not_specialize=[*UNSPECIALISED, "SPLITS"])
def finish_kernel(
    part, SPLITS, scale_a, scale_b, bias, c, a, b, M, N, K, BATCH, BATCH_A, BATCH_B,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """The result from the sums of the splits. WIDE: their total may pass int64, so it is kept in two words."""
    if OVERLAP:
        gdc_wait()
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, 1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    low = tl.zeros((BM, BN), tl.int64)
    high = tl.zeros((BM, BN), tl.int64)
    for split in range(SPLITS):
        at = part + ((split * BATCH + batch).to(tl.int64) * M + rows.to(tl.int64)[:, None]) * N + cols[None, :]
        total = tl.load(at, mask=mask, other=0)
        if WIDE:
            low += total & 0xFFFFFFFF
            high += total >> 32
        else:
            low += total
    r = rounded(low, high) if WIDE else low.to(tl.float32)
    finish(r, scale_a, scale_b, bias, c, a, b, batch, batch % BATCH_A, batch % BATCH_B, rows, cols, M, N, K, stride_ab,
           stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, S, BIAS)  # fmt: skip


def finish_splits(part: Tensor, arguments: Sequence[Any], Kpad: int, constexprs: Mapping[str, Any]) -> None:
    """Stores the result from part (SPLITS, batch, M, N) int64. arguments: as the kernel takes them from scale_a on."""
    splits, batch, M, N = part.shape
    wide = Kpad > LONGEST_INT64[constexprs["S"]]
    grid = (batch * cdiv(M, 32) * cdiv(N, 64),)
    overlap = can_overlap(part.device)
    launch(finish_kernel, grid, part, splits, *arguments, BM=32, BN=64, WIDE=wide, OVERLAP=overlap, overlap=overlap,
           **constexprs)  # fmt: skip
