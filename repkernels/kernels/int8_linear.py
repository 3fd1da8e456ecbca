"""Products with int8 weights on a GPU (SPEC.md, "int8 weights"): exact sums of the digits of rows times the weights.

One product of int8 for each digit of the rows, where two operands of two digits need four. Few rows lie side by side as
one operand, so that each weight is read once.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from repkernels.digits import padded
from repkernels.kernels.arith import ldexp, store_result, tile_of
from repkernels.kernels.configuration import Configuration, fitted, pick
from repkernels.kernels.engine import engine_for
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed import digit_dot
from repkernels.kernels.matmul_fixed_finish import LONGEST_INT32
from repkernels.kernels.matmul_fixed_hopper import on_hopper
from repkernels.kernels.matmul_fixed_narrow import weighted
from repkernels.kernels.matmul_nonfinite import with_nonfinite
from repkernels.kernels.operand import describe, describe_digits, readable
from repkernels.kernels.quantize import quantize
from repkernels.kernels.sizes import cdiv, next_power_of_2

# The longest K whose sums int64 holds.
LONGEST = (0, 2**48, 2**40, 2**32, 2**24)


@triton.jit
def int8_sum(
    digits, w, row, plane, col, k0, k1, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    WINDOW16: tl.constexpr,
):  # fmt: skip
    """P over k0..k1 as int64, k1 - k0 <= 131071."""
    c0 = tl.zeros((BM, BN), tl.int32)
    c1, c2, c3 = c0, c0, c0
    for k in range(k0, k1, BK):
        y = w.load([col, k]).T
        c0 = digit_dot(digits.load([row, k]), y, c0, WINDOW16)
        if S > 1:
            c1 = digit_dot(digits.load([row + plane, k]), y, c1, WINDOW16)
        if S > 2:
            c2 = digit_dot(digits.load([row + 2 * plane, k]), y, c2, WINDOW16)
        if S > 3:
            c3 = digit_dot(digits.load([row + 3 * plane, k]), y, c3, WINDOW16)
    total = c0.to(tl.int64)
    if S > 1:
        total = (total << 8) + c1
    if S > 2:
        total = (total << 8) + c2
    if S > 3:
        total = (total << 8) + c3
    return total


@triton.jit(do_not_specialize=["M", "Kpad"])
def int8_kernel(
    digits, weights, scale_x, scale, bias, c, x, w, M, N, K, Kpad, stride_xm, stride_xk, stride_wn, stride_wk,
    stride_cm, stride_cn, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    WINDOW: tl.constexpr, WINDOWS: tl.constexpr, WINDOW16: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """digits: descriptor over (S * M, Kpad); weights over (N, K)."""
    pm, pn = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    if WINDOWS:
        total = tl.zeros((BM, BN), tl.int64)
        for k in tl.range(0, Kpad, WINDOW, num_stages=1):
            total += int8_sum(digits, weights, pm * BM, M, pn * BN, k, min(k + WINDOW, Kpad), S, BM, BN, BK, WINDOW16)
    else:
        total = int8_sum(digits, weights, pm * BM, M, pn * BN, 0, Kpad, S, BM, BN, BK, WINDOW16)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    sx = tl.load(scale_x + rows, mask=rows < M, other=0)
    r = ldexp(total.to(tl.float32), (sx >> 1)[:, None] + tl.zeros((1, BN), tl.int32))
    if tl.max(sx & 1, 0) > 0:
        r = with_nonfinite(r, x, w, pm * 0, rows, cols, M, N, K, 0, stride_xm, stride_xk, 0, stride_wk, stride_wn, 32)
    r = r * tl.load(scale + cols, mask=cols < N, other=0.0)[None, :]
    store_result(r, bias, c, pm * 0, rows, cols, M, N, 0, stride_cm, stride_cn, BIAS)


@triton.jit(do_not_specialize=["M", "Kpad"])
def int8_narrow_kernel(
    weights, digits, scale_x, scale, bias, c, w, x, R, M, K, Kpad, stride_wr, stride_wk, stride_xm, stride_xk,
    stride_cm, stride_cr, S: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """BM rows of w (R, K) against all M <= BN rows of x; digits: over (S * BN, Kpad), in blocks of SLOTS * BN rows."""
    row = tl.program_id(0) * BM
    acc = tl.zeros((BM, SLOTS * BN), tl.int32)
    for k in range(0, Kpad, BK):
        acc = tl.dot(weights.load([row, k]), digits.load([0, k]).T, acc, out_dtype=tl.int32)
    total = weighted(acc, 1 if S > 1 else 0, S, SLOTS, BM, BN)
    rows = row + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    sx = tl.load(scale_x + cols, mask=cols < M, other=0)
    r = ldexp(total.to(tl.float32), (sx >> 1)[None, :] + tl.zeros((BM, 1), tl.int32))
    batch = tl.program_id(0) * 0
    if tl.max(sx & 1, 0) > 0:
        r = with_nonfinite(r, w, x, batch, rows, cols, R, M, K, 0, stride_wr, stride_wk, 0, stride_xk, stride_xm, 32)
    r = r * tl.load(scale + rows, mask=rows < R, other=0.0)[:, None]
    store_result(r, bias, c, batch, rows, cols, R, M, 0, stride_cr, stride_cm, BIAS)


CONFIGURATIONS = (
    Configuration(128, 128, 128, 8, 4, GROUP=16),
    Configuration(64, 128, 128, 4, 4),
    Configuration(64, 64, 128, 4, 4),
)
WINDOW16 = (Configuration(64, 64, 64, 4, 2),)
NARROW = (Configuration(64, 16, 256, 4, 5, swap=True), Configuration(64, 32, 256, 4, 4, swap=True))


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out: Tensor, S: int) -> None:
    """out (M, N) = x (M, K) in S digits times weight (N, K) int8 and scale (N,) fp32, + bias (N,); nothing is empty."""
    (M, K), N, device = x.shape, len(weight), x.device
    Kpad = padded(K)
    if Kpad > LONGEST[S]:
        raise NotImplementedError(f"input: {K} features are too many for {S} digits; at most {LONGEST[S]}")
    readable_weight = weight
    if not readable(weight):
        readable_weight = weight.new_zeros((N, Kpad))[:, :K].copy_(weight)
    window16 = engine_for(device) == "window16"
    held = out if bias is None else bias.contiguous()
    few = next((c for c in NARROW if c.BN >= M), None)
    if few is not None and not window16 and Kpad <= LONGEST_INT32:
        slots = next_power_of_2(S)
        digits = quantize(x[None], S, rows=few.BN)
        c = fitted(few, slots, device)
        launch(int8_narrow_kernel, (cdiv(N, c.BM),), describe(readable_weight, [c.BM, c.BK]),
               describe_digits(digits, slots * c.BN, c.BK), digits.scale, scale, held, out, weight, x, N, M, K, Kpad,
               *weight.stride(), *x.stride(), *out.stride(), S=S, SLOTS=slots, BM=c.BM, BN=c.BN, BK=c.BK,
               BIAS=0 if bias is None else 2, num_warps=c.num_warps, num_stages=c.num_stages)  # fmt: skip
        return
    digits = quantize(x[None], S)
    c = pick(
        WINDOW16 if window16 else CONFIGURATIONS, out[None], 3 * S if window16 else S, 0 if on_hopper(device) else 4
    )
    window = LONGEST_INT32 // c.BK * c.BK
    common: dict[str, Any] = {"BM": c.BM, "BN": c.BN, "BK": c.BK, "GROUP": c.GROUP, "BIAS": int(bias is not None)}
    launch(int8_kernel, (c.tiles(M, N),), describe_digits(digits, c.BM, c.BK), describe(readable_weight, [c.BN, c.BK]),
           digits.scale, scale, held, out, x, weight, M, N, K, Kpad, *x.stride(), *weight.stride(), *out.stride(), S=S,
           WINDOW=window, WINDOWS=Kpad > window, WINDOW16=window16, num_warps=c.num_warps, num_stages=c.num_stages,
           **common)  # fmt: skip
