"""Outputs of a `fixed` contraction that meet an infinity or a NaN (SPEC.md, "Non-finite elements")."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.arith import tile_of
from repkernels.kernels.launch import launch


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
def nonfinite_kernel(
    scale_a, scale_b, bias, c, a, b, M, N, K, BATCH_A, BATCH_B,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Overwrites the outputs that are not finite, in the tiles whose rows or columns are flagged. BIAS: by column or none."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, 1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    sa = tl.load(scale_a + (batch % BATCH_A) * M + rows, mask=rows < M, other=0)
    sb = tl.load(scale_b + (batch % BATCH_B) * N + cols, mask=cols < N, other=0)
    if tl.max(sa & 1, 0) + tl.max(sb & 1, 0) > 0:
        r = with_nonfinite(tl.zeros((BM, BN), tl.float32), a, b, batch, rows, cols, M, N, K, stride_ab, stride_am,
                           stride_ak, stride_bb, stride_bk, stride_bn, 32)  # fmt: skip
        changed = (rows < M)[:, None] & (cols < N)[None, :] & (r != 0)
        if BIAS:
            r = r + tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        at = c + batch.to(tl.int64) * stride_cb + rows.to(tl.int64)[:, None] * stride_cm + cols[None, :] * stride_cn
        tl.store(at, r.to(c.dtype.element_ty), mask=changed)


def mark_nonfinite(
    scales: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor, a: Tensor, b: Tensor, strides: Sequence[int]
) -> None:
    """Puts what is not finite into out (B, M, N), the product of a (Ba, M, K) and b (Bb, K, N)."""
    batch, M, N = out.shape
    BM, BN = (128, 128) if M > 64 else (32, 128)
    launch(nonfinite_kernel, (batch * triton.cdiv(M, BM) * triton.cdiv(N, BN),), *scales, out if bias is None else bias,
           out, a, b, M, N, a.shape[2], len(a), len(b), *strides, *out.stride(), BM=BM, BN=BN, BIAS=bias is not None,
           num_warps=8)  # fmt: skip
