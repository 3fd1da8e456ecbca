"""`ordered` contractions: one chain of fused multiply-adds per output, k ascending (SPEC.md, "ordered")."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.arith import store_result, tile_of
from repkernels.kernels.configuration import Configuration, pick
from repkernels.kernels.launch import launch
from repkernels.kernels.operand import strides

CHUNK = 4096


@triton.jit
def chain(pa, pb, acc, k0, k1, rows, cols, M, N, stride_ak, stride_bk, BK: tl.constexpr, EVEN: tl.constexpr):
    """acc continued over k0..k1. `tl.dot` in ieee mode is one FMA chain per output, ascending from the accumulator."""
    for k in range(k0, k1, BK):
        ks = k + tl.arange(0, BK)
        if EVEN:
            x = tl.load(pa + ks.to(tl.int64)[None, :] * stride_ak)
            y = tl.load(pb + ks.to(tl.int64)[:, None] * stride_bk)
        else:
            x = tl.load(
                pa + ks.to(tl.int64)[None, :] * stride_ak, mask=(rows < M)[:, None] & (ks < k1)[None, :], other=0.0
            )
            y = tl.load(
                pb + ks.to(tl.int64)[:, None] * stride_bk, mask=(ks < k1)[:, None] & (cols < N)[None, :], other=0.0
            )
        acc = tl.dot(x.to(tl.float32), y.to(tl.float32), acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["M"])
def ordered_kernel(
    a, b, bias, c, M, N, K,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, ONE_CHUNK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """One tile a program. EVEN: the tiles cover the operands exactly, so that no load needs a mask."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, GROUP)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    pa = a + batch.to(tl.int64) * stride_ab + rows.to(tl.int64)[:, None] * stride_am
    pb = b + batch.to(tl.int64) * stride_bb + cols.to(tl.int64)[None, :] * stride_bn
    zero = tl.zeros((BM, BN), tl.float32)
    total = chain(pa, pb, zero, 0, min(K, CHUNK), rows, cols, M, N, stride_ak, stride_bk, BK, EVEN)
    if not ONE_CHUNK:
        for k in tl.range(CHUNK, K, CHUNK, num_stages=1):
            total += chain(pa, pb, zero, k, min(K, k + CHUNK), rows, cols, M, N, stride_ak, stride_bk, BK, EVEN)
    store_result(total, bias, c, batch, rows, cols, M, N, stride_cb, stride_cm, stride_cn, BIAS)


@triton.jit(do_not_specialize=["M", "N", "K"])
def outer_kernel(
    a, b, bias, c, M, N, K,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The same chains written out, one k at a time: binary64, and GPUs whose fp32 `tl.dot` is not one ascending chain.

    Rows and columns past the end repeat the last one, and are not stored.
    """
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, GROUP)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    pa = a + batch.to(tl.int64) * stride_ab + tl.minimum(rows, M - 1).to(tl.int64) * stride_am
    pb = b + batch.to(tl.int64) * stride_bb + tl.minimum(cols, N - 1).to(tl.int64) * stride_bn
    total = tl.zeros((BM, BN), TYPE)
    for k0 in range(0, K, CHUNK):
        acc = tl.zeros((BM, BN), TYPE)
        for _ in range(k0, min(K, k0 + CHUNK)):
            x = tl.load(pa).to(TYPE)
            y = tl.load(pb).to(TYPE)
            acc = tl.fma(tl.broadcast_to(x[:, None], (BM, BN)), tl.broadcast_to(y[None, :], (BM, BN)), acc)
            pa += stride_ak
            pb += stride_bk
        total = acc if k0 == 0 else total + acc
    store_result(total, bias, c, batch, rows, cols, M, N, stride_cb, stride_cm, stride_cn, BIAS)


CONFIGURATIONS = (
    Configuration(64, 64, 32, 4, 3),
    Configuration(32, 32, 32, 4, 3),
)


def ordered(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """a (Ba, M, K) @ b (Bb, K, N) into out (B, M, N), K > 0, nothing empty; fp32, bf16, fp16, or fp64 in binary64."""
    batch, M, N = out.shape
    K = a.shape[2]
    c = pick(CONFIGURATIONS, out, a.element_size())
    common: dict[str, Any] = {"CHUNK": CHUNK, "BM": c.BM, "BN": c.BN, "GROUP": c.GROUP, "BIAS": int(bias is not None)}
    written_out = out.dtype == torch.float64 or torch.version.hip is not None
    if b.stride(2) != 1 and not written_out:
        b = b.contiguous()
    grid = (batch * c.tiles(M, N),)
    arguments = (a, b, out if bias is None else bias, out, M, N, K, *strides(a), *strides(b), *out.stride())
    if written_out:
        kind = tl.float64 if out.dtype == torch.float64 else tl.float32
        launch(outer_kernel, grid, *arguments, TYPE=kind, num_warps=c.num_warps, **common)
        return
    even = M % c.BM == 0 and N % c.BN == 0 and K % c.BK == 0
    launch(ordered_kernel, grid, *arguments, BK=c.BK, EVEN=even, ONE_CHUNK=K <= CHUNK, num_warps=c.num_warps,
           num_stages=c.num_stages, **common)  # fmt: skip
