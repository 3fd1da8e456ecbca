"""`native` contractions: floating-point tensor cores, k ascending, K never split (SPEC.md, "native")."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.arith import store_result, tile_of
from repkernels.kernels.configuration import Configuration, fitted, pick, pick_narrow, processors
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.operand import describe_vectors
from repkernels.kernels.overlap import FETCHED, begin, fetch
from repkernels.kernels.sizes import cdiv


@triton.jit(do_not_specialize=["M", "K", "BATCH", "BATCH_A", "BATCH_B", "stride_wm"])
def native_kernel(
    a, b, bias, c, w, M, N, K, BATCH, BATCH_A, BATCH_B, stride_cb, stride_cm, stride_cn, stride_wm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ACROSS_A: tl.constexpr, ACROSS_B: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr, FETCHES: tl.constexpr,
):  # fmt: skip
    """Persistent over (batch, tile). a, b: descriptors over (batch * rows, K), or with ACROSS over (K, rows).

    w: what a describes, FETCHES KiB of whose rows are fetched beforehand.
    """
    for i in tl.static_range(FETCHES):
        rows = tl.minimum(tl.program_id(0) * BM + tl.arange(0, BM), M - 1)
        fetch(w + rows.to(tl.int64) * stride_wm + i * (FETCHED // (w.dtype.element_ty.primitive_bitwidth // 8)))
    begin(OVERLAP)
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for item in tl.range(tl.program_id(0), BATCH * tiles, tl.num_programs(0)):
        batch = item // tiles
        pm, pn = tile_of(item % tiles, M, N, BM, BN, GROUP)
        row_a = (batch % BATCH_A) * M + pm * BM
        row_b = (batch % BATCH_B) * N + pn * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            x = a.load([k, row_a]).T if ACROSS_A else a.load([row_a, k])
            y = b.load([k, row_b]) if ACROSS_B else b.load([row_b, k]).T
            acc = tl.dot(x, y, acc)
        rows = pm * BM + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        store_result(acc, bias, c, batch, rows, cols, M, N, stride_cb, stride_cm, stride_cn, BIAS)


CONFIGURATIONS = (
    Configuration(128, 256, 64, 8, 4),
    Configuration(128, 128, 64, 8, 4),
    Configuration(128, 64, 128, 4, 4),
    Configuration(64, 64, 128, 4, 5),
)
NARROW = (
    Configuration(128, 16, 128, 4, 5, swap=True, GROUP=1),
    Configuration(64, 16, 128, 4, 5, swap=True, GROUP=1),
    Configuration(32, 16, 256, 4, 6, swap=True, GROUP=1),
    Configuration(64, 32, 128, 4, 5, swap=True, GROUP=1),
    Configuration(64, 64, 128, 4, 5, swap=True, GROUP=1),
)


@functools.cache
def lacks_bfloat16(device: torch.device) -> bool:
    """Whether this is an NVIDIA GPU before sm_80."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0)


def native(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """a (Ba, M, K) @ b (Bb, K, N) into out (B, M, N), K > 0, nothing empty; bf16 or fp16."""
    K, device = a.shape[2], out.device
    if a.dtype == torch.bfloat16 and lacks_bfloat16(device):
        raise NotImplementedError(f"contract: native has no bfloat16 tensor cores on {device}; use fixed16 or float16")
    narrow = pick_narrow(NARROW, out.shape[1], out.shape[2], device) if len(out) == 1 else None
    c = fitted(narrow, a.element_size(), device) if narrow else pick(CONFIGURATIONS, out, a.element_size())
    first, second, by = a, b.transpose(1, 2), int(bias is not None)
    if c.swap:
        first, second, by, out = second, first, 2 * by, out.transpose(1, 2)
    da, across_a = describe_vectors(first, c.BM, c.BK)
    db, across_b = describe_vectors(second, c.BN, c.BK)
    batch, M, N = out.shape
    tiles = batch * cdiv(M, c.BM) * cdiv(N, c.BN)
    programs = tiles if c.swap else min(tiles, processors(device))
    overlap = can_overlap(device)
    fetches = 2 if overlap and c.swap and not across_a and K * a.element_size() >= 2 * FETCHED.value else 0
    launch(native_kernel, (programs,), da, db, out if bias is None else bias, out, da.base, M, N, K, batch,
           first.shape[0], second.shape[0], *out.stride(), da.strides[0], BM=c.BM, BN=c.BN, BK=c.BK, GROUP=c.GROUP,
           ACROSS_A=across_a, ACROSS_B=across_b, BIAS=by, OVERLAP=overlap, FETCHES=fetches, overlap=overlap,
           num_warps=c.num_warps, num_stages=c.num_stages)  # fmt: skip
