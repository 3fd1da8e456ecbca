"""sin and cos, correctly rounded; of pi x where Box and Muller need them. As in kernels/rounded/trigonometric.py.

Evaluated in binary64 by the same operations as there, rounded to fp32 once, and set right at the listed inputs. All
rely on the caller's `keep_subnormals` (fpu.py).
"""

import numpy as np
from numba import njit

from repkernels.coefficients import trigonometric as c
from repkernels.cpu.functions import bitcast, fma
from repkernels.cpu.rounded.arithmetic import magnitude, patched, polynomial

F32, F64, I32, I64 = np.float32, np.float64, np.int32, np.int64

TWO_OVER_PI = np.array(c.TWO_OVER_PI, np.int64)
TWO_OVER_PI_ROUNDED, SIN, COS = c.TWO_OVER_PI_ROUNDED, c.SIN, c.COS
COS_PATCHES = c.COS_PATCHES
UNIT, HALF, LOW_WORD = 2.0**-62, I64(0x2000000000000000), I64(0xFFFFFFFF)
INFINITY, NAN = F32(np.inf), F32(np.nan)
MAGIC32, SINPI, COSPI = F32(c.MAGIC32), c.SINPI, c.COSPI


@njit
def joined(high, low, shift):
    """The high word of (high, low) << shift, 0 <= shift < 32."""
    return (((high << 32) | low) >> (32 - shift)) & LOW_WORD


@njit
def quarter_turns(a):
    """fp32 a >= 0 as n + f quarter turns, |f| <= 1/2: n modulo 4, f in binary64."""
    bits = I64(bitcast(a))
    exponent = bits >> 23
    if exponent < 126:
        return I32(0), F64(a) * TWO_OVER_PI_ROUNDED
    # Digits of higher weight make whole turns.
    at = min(exponent, 254) - 120
    first, shift = at >> 5, at & 31
    w0, w1, w2, w3 = (
        TWO_OVER_PI[first],
        TWO_OVER_PI[first + 1],
        TWO_OVER_PI[first + 2],
        TWO_OVER_PI[first + 3],
    )
    mantissa = (bits & 0x7FFFFF) | 0x800000
    high = (mantissa * joined(w0, w1, shift)) << 32
    middle = mantissa * joined(w1, w2, shift)
    low = (mantissa * joined(w2, w3, shift)) >> 32
    # In units of 2^-62, modulo 4.
    product = high + middle + low
    n = (product + HALF) >> 62
    return I32(n), F64(product - (n << 62)) * UNIT


@njit
def wide_sine(a, shift):
    """sin a, or cos a for shift = 1, a >= 0, but for its sign: that of the second result's bit 1 more."""
    n, f = quarter_turns(a)
    n = I32(n + shift)
    z = f * f
    return polynomial(z, COS) if n & 1 != 0 else polynomial(z, SIN) * f, n


@njit
def sin(x):
    """RN32(sin x); zeros stay, NaN at infinities."""
    a = magnitude(x)
    y, n = wide_sine(a, 0)
    y = with_turns(F32(y), I32(n ^ ((bitcast(x) >> 30) & 2)))
    return y if a < INFINITY else NAN


@njit
def cos(x):
    """RN32(cos x); NaN at infinities."""
    a = magnitude(x)
    y, n = wide_sine(a, 1)
    return patched(a, with_turns(F32(y), n), COS_PATCHES) if a < INFINITY else NAN


@njit
def sincospi(x):
    """(RN32(sin(pi x)), RN32(cos(pi x))) for x a multiple of 2^-23 in [0, 2); zeros are +0."""
    m = fma(x, F32(2), MAGIC32)
    # A part of a quarter turn, exact.
    f = F64(fma(x, F32(2), MAGIC32 - m))
    z = f * f
    s = F32(polynomial(z, SINPI) * f)
    c = F32(polynomial(z, COSPI))
    quarters = bitcast(m)
    odd = quarters & 1 != 0
    # Adding +0 makes -0 a +0.
    return with_turns(c if odd else s, quarters) + F32(0), with_turns(s if odd else c, I32(quarters + 1)) + F32(0)


@njit
def with_turns(y, quarters):
    """-y where bit 1 of `quarters` is set."""
    return bitcast(I32(bitcast(y) ^ I32((quarters & 2) << 30)))
