"""Digits of rows made in registers, and exact products of them on 16-bit tensor cores (SPEC.md, "Attention", "fixed").

A product's sums stay within 2^24: at most 256 terms of at most 2^14, of four digit pairs. So fp32 accumulators hold
them exactly on every generation, and digits, small integers, are never subnormal.
"""

import triton
import triton.language as tl

from repkernels.kernels.arith import ldexp, magnitude, round_half_even, scale_exponent
from repkernels.kernels.matmul_nonfinite import sign_class

# The largest 24-bit significand that a leading digit still holds, by number of digits, and 128 in every digit.
LAST_OF = tl.constexpr((0, 16646144, 16711168, 16711422, 16711422))
BIAS_OF = tl.constexpr((0, 128, 32896, 8421504, -2139062144))
# P is a multiple of 256 to this power over eight bits.
SHIFT_OF = tl.constexpr((0, 0, 0, 8, 16))
# The exponent of a row of zeros: any number times 2 to it is none.
NO_ROW = tl.constexpr(-(1 << 20))


@triton.jit
def digits_of_rows(v, S: tl.constexpr):
    """fp32 v (R, K) -> biased fixed-point numbers (R, K), exponents (R,), whether a row has a non-finite element.

    What is biased by 128 in each digit has the digits, plus 128, as its bytes. A row of zeros has exponent NO_ROW.
    """
    bits = magnitude(v)
    finite = bits < 0x7F800000
    most = tl.max(tl.where(finite, bits, 0), 1)
    e = scale_exponent(most, S, LAST_OF[S])
    odd = tl.max((~finite).to(tl.int32), 1)
    q = round_half_even(ldexp(tl.where(finite, v, 0.0), -e[:, None]), S)
    return q + BIAS_OF[S], tl.where(most == 0, NO_ROW, e), odd


@triton.jit
def digit(q, i, S: tl.constexpr):
    """Digit i, the most significant being 0, of biased q as fp16."""
    byte = (q >> (8 * (S - 1 - i))) & 255
    # 1024 + byte by its bits: a conversion of integers would take four times as long.
    return (byte | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def digits16(q, S: tl.constexpr):
    """All digits of biased q, one fp16 tensor each."""
    digits = ()
    for i in tl.static_range(S):
        digits = digits + (digit(q, i, S),)
    return digits


@triton.jit
def stacked(q, S: tl.constexpr, SLOTS: tl.constexpr):
    """All digits of biased q (M, K) as rows of one fp16 tensor, (SLOTS * M, K); slots past S are zeros."""
    slot = tl.arange(0, SLOTS)[:, None, None]
    byte = tl.where(slot < S, (q[None, :, :] >> (8 * tl.maximum(S - 1 - slot, 0))) & 255, 128)
    x = (byte | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1152.0
    return tl.reshape(x, (SLOTS * q.shape[0], q.shape[1]))


@triton.jit
def rounded_sum(high, low):
    """RN32 of high * 2^16 + low: of two exact numbers in one rounding."""
    return tl.fma((high + (low >> 16)).to(tl.float32), 65536.0, (low & 0xFFFF).to(tl.float32))


@triton.jit
def factor_of(q, j, S: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Digit j of biased q as a second factor, made where it is used, so that shared memory holds one at a time."""
    y = digit(q, j, S)
    if TRANSPOSED:
        y = tl.trans(y)
    return y


@triton.jit
def products(x, q, S: tl.constexpr, TRANSPOSED: tl.constexpr):
    """RN32(P') of the digits x, tensors (M, K), and those of biased q (K, N), or TRANSPOSED (N, K); K <= 256."""
    y = factor_of(q, 0, S, TRANSPOSED)
    r = tl.dot(x[0], y, out_dtype=tl.float32)
    if S == 2:
        high = r.to(tl.int32)
        r = tl.dot(x[1], y, out_dtype=tl.float32)
        y = factor_of(q, 1, S, TRANSPOSED)
        low = tl.dot(x[0], y, r, out_dtype=tl.float32).to(tl.int32) * 256
        low += tl.dot(x[1], y, out_dtype=tl.float32).to(tl.int32)
        r = rounded_sum(high, low)
    elif S > 2:
        total = tl.zeros(r.shape, tl.int64)
        for j in tl.static_range(S):
            y = factor_of(q, j, S, TRANSPOSED)
            for i in tl.static_range(S):
                if i + j <= S:
                    total += tl.dot(x[i], y, out_dtype=tl.float32).to(tl.int64) << (8 * (S - i - j))
        r = total.to(tl.float32)
    return r


@triton.jit
def products_stacked(x, q, S: tl.constexpr, SLOTS: tl.constexpr, TRANSPOSED: tl.constexpr):
    """`products` of the stacked digits x (SLOTS * M, K): one product for each digit of q."""
    M: tl.constexpr = x.shape[0] // SLOTS
    N: tl.constexpr = q.shape[0] if TRANSPOSED else q.shape[1]
    slot = tl.arange(0, SLOTS)[:, None, None]
    r = tl.dot(x, factor_of(q, 0, S, TRANSPOSED), out_dtype=tl.float32)
    if S == 2:
        a = tl.reshape(r.to(tl.int32), (SLOTS, M, N))
        y = factor_of(q, 1, S, TRANSPOSED)
        b = tl.reshape(tl.dot(x, y, out_dtype=tl.float32).to(tl.int32), (SLOTS, M, N))
        high = tl.sum(tl.where(slot == 0, a, 0), 0)
        low = tl.sum(tl.where(slot == 0, b * 256, a * 256 + b), 0)
        r = rounded_sum(high, low)
    elif S > 2:
        total = tl.zeros((M, N), tl.int64)
        for j in tl.static_range(S):
            y = factor_of(q, j, S, TRANSPOSED)
            c = tl.reshape(tl.dot(x, y, out_dtype=tl.float32).to(tl.int64), (SLOTS, M, N))
            counts = (slot < S) & (slot + j <= S)
            total += tl.sum(tl.where(counts, c << (8 * tl.where(counts, S - slot - j, 0)), 0), 0)
        r = total.to(tl.float32)
    return r


@triton.jit
def weight_digits(p, e, S: tl.constexpr):
    """Weights p (M, K) fp32 of rows whose exponents are e (K,) -> biased fixed-point numbers, exponents (M,).

    The exponent is the largest that an element needs: the smallest E with |p_j| 2^(e_j - E) <= L for all. Rows of
    zeros, those of exponent NO_ROW, take no part.
    """
    bits = magnitude(p)
    counts = (bits > 0) & (bits < 0x7F800000) & (e > NO_ROW)[None, :]
    needs = tl.where(counts, scale_exponent(bits, S, LAST_OF[S]) + e[None, :], NO_ROW)
    most = tl.max(needs, 1)
    most = tl.where(most == NO_ROW, 0, most)
    q = round_half_even(ldexp(tl.where(counts, p, 0.0), e[None, :] - most[:, None]), S)
    return q + BIAS_OF[S], most


@triton.jit
def is_finite(x):
    """Whether fp32 x is finite."""
    return magnitude(x) < 0x7F800000


@triton.jit
def with_classes(r, x, y):
    """r (M, N) where the product of the signs of x (M, K) and y (K, N) is finite, that product elsewhere."""
    classes = tl.dot(sign_class(x).to(tl.float16), sign_class(y).to(tl.float16), out_dtype=tl.float32)
    return tl.where(is_finite(classes), r, classes)
