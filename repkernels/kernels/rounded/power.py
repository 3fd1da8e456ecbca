"""x^y of blocks of fp32 numbers, correctly rounded: 2^(y log2 |x|) in two binary64 words, as in cpu/rounded/power.py.

Its relative error is below 2^-94. A power of 24-bit numbers is half-way between two numbers of 24 bits only if 8y is an
integer and 0 < y <= 15 (m^(k/8), m odd, is rational only for m a power that 24 bits can hold, and has more than 25 bits
for larger y), or if x is a power of two, where every step here is exact. So for those y a second word below 2^-80 is
an error, and is left out. Of the pairs with other y, about 2^60 have results other than near 1 or out of range; their
powers behave as random numbers would: that one of them is within 2^-94 of half-way has a chance of about 2^-9.
"""

import triton
import triton.language as tl

from repkernels.coefficients import power as c
from repkernels.kernels.functions import round_to_odd
from repkernels.kernels.rounded.arithmetic import constant, magnitude, minus_quotient, scaled
from repkernels.kernels.rounded.double_double import renormalized, series, times
from repkernels.kernels.rounded.logarithm import split

LOG2_TAIL = tl.constexpr(c.LOG2_TAIL)
LOG2_HEAD = tl.constexpr(c.LOG2_HEAD)
EXP2_TAIL = tl.constexpr(c.EXP2_TAIL)
EXP2_HEAD = tl.constexpr(c.EXP2_HEAD)
MAGIC = tl.constexpr(1.5 * 2.0**52)
MAGIC_F32 = tl.constexpr(1.5 * 2.0**23)


@triton.jit
def log2_words(u):
    """log2(u) of normal binary64 u > 0 with at most 24 bits, as high + low."""
    m, n = split(u)
    minus_f, d = constant(1.0) - m, m + constant(1.0)
    sh = minus_quotient(minus_f, d, d.to(tl.float32))
    sl = minus_quotient(tl.fma(sh, d, minus_f), d, d.to(tl.float32))
    zh, zl = times(sh, sl, sh, sl)
    ph, pl = series(zh, zl, LOG2_TAIL, LOG2_HEAD)
    h, l = times(sh, sl, ph, pl)
    high, low = renormalized(n, h)
    return renormalized(high, low + l)


@triton.jit
def power_of_magnitude(a, y):
    """RN32(a^y) of finite a > 0 and finite y."""
    h, l = log2_words(a.to(tl.float64))
    wide = y.to(tl.float64)
    th = h * wide
    tlow = tl.fma(l, wide, tl.fma(h, wide, th * constant(-1.0)))
    # Beyond 200 either way the result is infinite or zero, whatever the second word is.
    outside = (th > 200.0) | (th < -200.0)
    th = tl.where(outside, tl.where(th > 0.0, constant(200.0), constant(-200.0)), th)
    t = th + constant(MAGIC)
    rh, rl = renormalized(th - (t - constant(MAGIC)), tl.where(outside, constant(0.0), tlow))
    ph, pl = series(rh, rl, EXP2_TAIL, EXP2_HEAD)
    ph, pl = renormalized(ph, pl)
    eighths = y * 8.0
    few = (y > 0.0) & (y <= 15.0) & ((eighths + MAGIC_F32) - MAGIC_F32 == eighths)
    pl = tl.where(few & (pl < 2.0**-80) & (pl > -(2.0**-80)), constant(0.0), pl)
    return scaled(round_to_odd(ph, pl), t.to(tl.int64, bitcast=True) << 52).to(tl.float32)


@triton.jit
def whole_and_odd(y):
    """Whether y is an integer, and an odd one; infinities and zeros are even integers."""
    bits = y.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    point = 150 - (bits >> 23)
    inside = tl.where(point < 0, 0, tl.where(point > 24, 24, point))
    digits = (bits & 0x7FFFFF) | 0x800000
    below = digits & ((1 << inside) - 1)
    whole = ((below == 0) & (point < 24)) | (bits == 0)
    return whole, whole & (point >= 0) & (((digits >> inside) & 1) == 1)


@triton.jit
def pow(x, y):
    """RN32(x^y), with the special values of C99."""
    a = magnitude(x)
    infinity = float("inf")
    finite = (a > 0.0) & (a < infinity) & (magnitude(y) < infinity)
    r = power_of_magnitude(tl.where(finite, a, 1.0), tl.where(finite, y, 1.0))
    ends = tl.where(a == 1.0, 1.0, tl.where((a > 1.0) == (y > 0.0), infinity, 0.0))
    r = tl.where(finite, r, ends)
    whole, odd = whole_and_odd(y)
    r = tl.where((x.to(tl.int32, bitcast=True) < 0) & odd, r * -1.0, r)
    r = tl.where((x < 0.0) & (a < infinity) & (whole == 0), float("nan"), r)
    r = tl.where((x != x) | (y != y), float("nan"), r)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, r)
