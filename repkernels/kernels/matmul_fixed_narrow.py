"""`fixed` contractions of few rows: the second operand's digits are read once, at the speed of memory.

The tile is turned: its rows are the second operand's columns. The digits of the few rows lie side by side as one
operand, so that each digit plane of the large operand meets all of them in one product.
"""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.digits import Digits
from repkernels.kernels.arith import ldexp, store_result
from repkernels.kernels.configuration import Configuration, fitted
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.matmul_nonfinite import with_nonfinite
from repkernels.kernels.operand import describe_digits
from repkernels.kernels.overlap import FETCHED, begin, fetch
from repkernels.kernels.quantize import quantize
from repkernels.kernels.sizes import cdiv, next_power_of_2


@triton.jit
def weighted(sums, i, S: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of digit i with each digit j of the few rows, (BM, SLOTS * BN) int32 -> their part of P', (BM, BN) int64."""
    j = tl.arange(0, SLOTS)
    last: tl.constexpr = S if S > 1 else 0
    taken = (j < S) & (i + j <= last)
    weight = tl.where(taken, tl.full((SLOTS,), 1, tl.int64) << (8 * tl.where(taken, last - i - j, 0)), 0)
    return tl.sum(tl.reshape(sums, (BM, SLOTS, BN)).to(tl.int64) * weight[None, :, None], 1)


@triton.jit(do_not_specialize=["M", "K", "Kpad", "stride_wr", "stride_wk", "stride_xm", "stride_xk"])
def narrow_kernel(
    digits_w, digits_x, scale_w, scale_x, bias, c, planes, w, x, R, M, K, Kpad,
    stride_wr, stride_wk, stride_xm, stride_xk, stride_cm, stride_cr,
    S: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
    OVERLAP: tl.constexpr, FETCHES: tl.constexpr,
):  # fmt: skip
    """BM vectors of w (R, K) against all M <= BN vectors of x (M, K); the result's element (m, r) is their product.

    digits_w: over (S * R, Kpad); digits_x: over (S * BN, Kpad), read in blocks of SLOTS * BN rows. Kpad <= 131071.
    planes: what digits_w describes, FETCHES KiB of whose rows are fetched beforehand.
    """
    row = tl.program_id(0) * BM
    for i in tl.static_range(FETCHES):
        for j in tl.static_range(S):
            vectors = tl.minimum(row + tl.arange(0, BM), R - 1) + j * R
            fetch(planes + vectors.to(tl.int64) * Kpad + i * FETCHED)
    c0 = tl.zeros((BM, SLOTS * BN), tl.int32)
    if S > 1:
        c1 = tl.zeros((BM, SLOTS * BN), tl.int32)
    if S > 2:
        c2 = tl.zeros((BM, SLOTS * BN), tl.int32)
    if S > 3:
        c3 = tl.zeros((BM, SLOTS * BN), tl.int32)
    begin(OVERLAP)
    for k in range(0, Kpad, BK):
        y = digits_x.load([0, k]).T
        c0 = tl.dot(digits_w.load([row, k]), y, c0, out_dtype=tl.int32)
        if S > 1:
            c1 = tl.dot(digits_w.load([row + R, k]), y, c1, out_dtype=tl.int32)
        if S > 2:
            c2 = tl.dot(digits_w.load([row + 2 * R, k]), y, c2, out_dtype=tl.int32)
        if S > 3:
            c3 = tl.dot(digits_w.load([row + 3 * R, k]), y, c3, out_dtype=tl.int32)
    total = weighted(c0, 0, S, SLOTS, BM, BN)
    if S > 1:
        total += weighted(c1, 1, S, SLOTS, BM, BN)
    if S > 2:
        total += weighted(c2, 2, S, SLOTS, BM, BN)
    if S > 3:
        total += weighted(c3, 3, S, SLOTS, BM, BN)
    rows = row + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    sw = tl.load(scale_w + rows, mask=rows < R, other=0)
    sx = tl.load(scale_x + cols, mask=cols < M, other=0)
    shift: tl.constexpr = 8 * (S - 2) if S > 2 else 0
    r = ldexp(total.to(tl.float32), (sw >> 1)[:, None] + (sx >> 1)[None, :] + shift)
    batch = tl.program_id(0) * 0
    if tl.max(sw & 1, 0) + tl.max(sx & 1, 0) > 0:
        r = with_nonfinite(r, w, x, batch, rows, cols, R, M, K, 0, stride_wr, stride_wk, 0, stride_xk, stride_xm, 32)
    store_result(r, bias, c, batch, rows, cols, R, M, 0, stride_cr, stride_cm, BIAS)


NARROW = {
    1: (Configuration(64, 16, 256, 4, 4, swap=True), Configuration(64, 32, 256, 4, 4, swap=True)),
    2: (
        Configuration(128, 16, 128, 4, 4, swap=True),
        Configuration(64, 16, 256, 4, 4, swap=True),
        Configuration(64, 32, 128, 4, 4, swap=True),
    ),
    3: (Configuration(64, 16, 128, 4, 4, swap=True),),
    4: (Configuration(64, 16, 128, 4, 3, swap=True),),
}


def narrow(c: Configuration, a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, S: int, b_digits: Digits) -> None:
    """a (1, M, K) @ b (1, K, N) into out (1, M, N) in S digits, M <= c.BN, 0 < K <= 131071; b_digits hold digits."""
    slots = next_power_of_2(S)
    a_digits = quantize(a, S, rows=c.BN)
    c = fitted(c, slots, out.device)
    _, M, N = out.shape
    K, Kpad = a.shape[2], a_digits.planes.shape[-1]
    w = b[0].T
    overlap = can_overlap(out.device)
    fetches = 1 if overlap and Kpad >= FETCHED.value else 0
    launch(narrow_kernel, (cdiv(N, c.BM),), describe_digits(b_digits, c.BM, c.BK),
           describe_digits(a_digits, slots * c.BN, c.BK), b_digits.scale, a_digits.scale, out if bias is None else bias,
           out, b_digits.planes, w, a, N, M, K, Kpad, *w.stride(), *a.stride()[1:], *out.stride()[1:], S=S, SLOTS=slots,
           BM=c.BM, BN=c.BN, BK=c.BK, BIAS=0 if bias is None else 2, OVERLAP=overlap, FETCHES=fetches, overlap=overlap,
           num_warps=c.num_warps, num_stages=c.num_stages)  # fmt: skip
