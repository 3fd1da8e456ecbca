"""Outputs of a `fixed` contraction that meet an infinity or a NaN (SPEC.md, "Non-finite elements")."""

import triton
import triton.language as tl


@triton.jit
def sign_class(v):
    """v if it is not finite, else its sign: what decides whether an output is finite, whatever the sizes."""
    finite = (v.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    sign = (v > 0).to(tl.float32) - (v < 0).to(tl.float32)
    return tl.where(finite, sign, v)


@triton.jit
def with_nonfinite(
    r, a, b, batch, rows, cols, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    BK: tl.constexpr,
):  # fmt: skip
    """r where the dot product of sign classes is finite, that dot product elsewhere. No order changes which."""
    pa = a + batch.to(tl.int64) * stride_ab + rows.to(tl.int64)[:, None] * stride_am
    pb = b + batch.to(tl.int64) * stride_bb + cols.to(tl.int64)[None, :] * stride_bn
    classes = tl.zeros(r.shape, tl.float32)
    for k in tl.range(0, K, BK, num_stages=1):
        ks = k + tl.arange(0, BK)
        x = tl.load(pa + ks.to(tl.int64)[None, :] * stride_ak, mask=(rows < M)[:, None] & (ks < K)[None, :], other=0.0)
        y = tl.load(pb + ks.to(tl.int64)[:, None] * stride_bk, mask=(ks < K)[:, None] & (cols < N)[None, :], other=0.0)
        classes = tl.dot(
            sign_class(x.to(tl.float32)).to(tl.float16),
            sign_class(y.to(tl.float32)).to(tl.float16),
            classes,
            out_dtype=tl.float32,
        )
    finite = (classes.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    return tl.where(finite, r, classes)
