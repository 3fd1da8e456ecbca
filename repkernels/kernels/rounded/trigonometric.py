"""sin and cos of a block of fp32 numbers, correctly rounded; of pi x where Box and Muller need them.

Evaluated in binary64, rounded to fp32 once, and set right at the listed inputs (coefficients/trigonometric.py). Every
line is one rounded operation or exact, as in cpu/rounded/trigonometric.py. The argument in quarter turns comes from the
digits of 2 / pi that matter for its exponent (M. Payne and R. Hanek, "Radian reduction for trigonometric functions",
1983).
"""

import triton
import triton.language as tl

from repkernels.coefficients import trigonometric as c
from repkernels.kernels.rounded.arithmetic import constant, magnitude, patched, polynomial

TWO_OVER_PI = tl.constexpr(c.TWO_OVER_PI)
TWO_OVER_PI_ROUNDED = tl.constexpr(c.TWO_OVER_PI_ROUNDED)
SIN = tl.constexpr(c.SIN)
COS = tl.constexpr(c.COS)
COS_PATCHES = tl.constexpr(c.COS_PATCHES)
MAGIC32 = tl.constexpr(c.MAGIC32)
SINPI = tl.constexpr(c.SINPI)
COSPI = tl.constexpr(c.COSPI)


@triton.jit
def word(I: tl.constexpr):
    """Word I of the digits of 2 / pi."""
    return tl.full([], TWO_OVER_PI[I], tl.uint32)


@triton.jit
def joined(high, low, shift):
    """The high word of (high, low) << shift, 0 <= shift < 32."""
    return (high << shift) | ((low >> (31 - shift)) >> 1)


@triton.jit
def quarter_turns(a):
    """fp32 a >= 0 as n + f quarter turns, |f| <= 1/2: n modulo 4 as int32, f in binary64."""
    bits = a.to(tl.int32, bitcast=True)
    exponent = bits >> 23
    # Digits of higher weight make whole turns.
    at = tl.where(exponent < 126, 126, exponent) - 120
    two, one, four = (at & 64) != 0, (at & 32) != 0, at >= 128
    shift = (at & 31).to(tl.uint32)
    w0, w1, w2 = tl.where(four, word(4), word(0)), tl.where(four, word(5), word(1)), tl.where(four, word(6), word(2))
    w3 = tl.where(four, word(7), word(3))
    w0, w1, w2 = tl.where(two, word(2), w0), tl.where(two, word(3), w1), tl.where(two, word(4), w2)
    w3, w4 = tl.where(two, word(5), w3), tl.where(two, word(6), word(4))
    w0, w1, w2, w3 = tl.where(one, w1, w0), tl.where(one, w2, w1), tl.where(one, w3, w2), tl.where(one, w4, w3)
    mantissa = ((bits & 0x7FFFFF) | 0x800000).to(tl.int64)
    high = mantissa * joined(w0, w1, shift).to(tl.int64) << 32
    middle = mantissa * joined(w1, w2, shift).to(tl.int64)
    low = mantissa * joined(w2, w3, shift).to(tl.int64) >> 32
    # In units of 2^-62, modulo 4.
    product = high + middle + low
    n = (product + 0x2000000000000000) >> 62
    f = (product - (n << 62)).to(tl.float64) * constant(2.0**-62)
    small = exponent < 126
    f = tl.where(small, a.to(tl.float64) * constant(TWO_OVER_PI_ROUNDED), f)
    return tl.where(small, 0, n.to(tl.int32)), f


@triton.jit
def wide_sine(a, SHIFT: tl.constexpr):
    """sin a, or cos a for SHIFT = 1, a >= 0, but for its sign: that of the second result's bit 1 more."""
    n, f = quarter_turns(a)
    n += SHIFT
    z = f * f
    return tl.where((n & 1) != 0, polynomial(z, COS), polynomial(z, SIN) * f), n


@triton.jit
def sin(x):
    """RN32(sin x); zeros stay, NaN at infinities."""
    a = magnitude(x)
    y, n = wide_sine(a, 0)
    y = with_turns(y.to(tl.float32), n ^ ((x.to(tl.int32, bitcast=True) >> 30) & 2))
    return tl.where(a < float("inf"), y, float("nan"))


@triton.jit
def cos(x):
    """RN32(cos x); NaN at infinities."""
    a = magnitude(x)
    y, n = wide_sine(a, 1)
    return tl.where(a < float("inf"), patched(a, with_turns(y.to(tl.float32), n), COS_PATCHES), float("nan"))


@triton.jit
def sincospi(x):
    """(RN32(sin(pi x)), RN32(cos(pi x))) for x a multiple of 2^-23 in [0, 2); zeros are +0."""
    m = tl.fma(x, 2.0, MAGIC32)
    # A part of a quarter turn, exact.
    f = tl.fma(x, 2.0, MAGIC32 - m).to(tl.float64)
    z = f * f
    s = (polynomial(z, SINPI) * f).to(tl.float32)
    c = polynomial(z, COSPI).to(tl.float32)
    quarters = m.to(tl.int32, bitcast=True)
    odd = (quarters & 1) != 0
    # Adding +0 makes -0 a +0.
    return (
        with_turns(tl.where(odd, c, s), quarters) + 0.0,
        with_turns(tl.where(odd, s, c), quarters + 1) + 0.0,
    )


@triton.jit
def with_turns(y, quarters):
    """-y where bit 1 of `quarters` is set."""
    return (y.to(tl.int32, bitcast=True) ^ ((quarters & 2) << 30)).to(tl.float32, bitcast=True)
