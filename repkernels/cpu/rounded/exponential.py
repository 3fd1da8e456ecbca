"""exp, exp2, expm1 and functions made of e^x, correctly rounded, as in kernels/rounded/exponential.py.

Each is evaluated in binary64 by the same operations as there, rounded to fp32 once, and set right at the listed inputs.
`wide_...` is the binary64 number before the rounding. All rely on the caller's `keep_subnormals` (fpu.py).
"""

import numpy as np
from numba import njit

from repkernels.coefficients import exponential as c
from repkernels.coefficients.logarithm import ATANH_WIDE
from repkernels.cpu.functions import bitcast, fma
from repkernels.cpu.rounded.arithmetic import (
    magnitude,
    minus_quotient,
    patched,
    polynomial,
    power_of_two,
    scaled,
    with_sign,
)

F32, F64, I32, I64 = np.float32, np.float64, np.int32, np.int64

LOG2_E, MINUS_LN2_HIGH, MINUS_LN2_LOW, MAGIC = c.LOG2_E, c.MINUS_LN2_HIGH, c.MINUS_LN2_LOW, c.MAGIC
EXP, EXP2 = c.EXP, c.EXP2
EXP2_PATCHES, SILU_PATCHES, SOFTPLUS_PATCHES, MISH_PATCHES = (
    c.EXP2_PATCHES,
    c.SILU_PATCHES,
    c.SOFTPLUS_PATCHES,
    c.MISH_PATCHES,
)
SELU_SCALE, SELU_HIGH, SELU_LOW = c.SELU_SCALE, c.SELU_HIGH, c.SELU_LOW
NEAR_HALF = F32(c.NEAR_HALF)


@njit
def exp_parts(x):
    """(E, n << 52) with e^x = 2^n * (1 + E), for |x| < 2^30; n is the integer nearest to x / ln 2. x: fp64."""
    t = fma(x, LOG2_E, MAGIC)
    n = t - MAGIC
    r = fma(n, MINUS_LN2_HIGH, x)
    r = fma(n, MINUS_LN2_LOW, r)
    return fma(polynomial(r, EXP), r * r, r), bitcast(t) << 52


@njit
def clamped(x, low, high):
    """x between bounds; NaN stays."""
    x = F32(low) if x < F32(low) else x
    return F32(high) if x > F32(high) else x


@njit
def wide_exp(x):
    e, shifted = exp_parts(F64(clamped(x, -104.0, 89.0)))
    return scaled(e + 1.0, shifted)


@njit
def exp(x):
    """RN32(e^x)."""
    return F32(wide_exp(x))


@njit
def wide_exp2(x):
    x = clamped(x, -151.0, 129.0)
    t = F64(x) + MAGIC
    r = F64(x) - (t - MAGIC)
    return scaled(fma(polynomial(r, EXP2), r, 1.0), bitcast(t) << 52)


@njit
def exp2(x):
    """RN32(2^x)."""
    return patched(x, F32(wide_exp2(x)), EXP2_PATCHES)


@njit
def wide_expm1(x):
    """+0 at both zeros."""
    e, shifted = exp_parts(F64(clamped(x, -104.0, 89.0)))
    power = power_of_two(shifted)
    return fma(power, e, power - 1.0)


@njit
def expm1(x):
    """RN32(e^x - 1); zeros stay."""
    return x if x == F32(0) else F32(wide_expm1(x))


@njit
def minus_exp_of_minus(a):
    """(-e^-a, n < 0 included) in binary64 for fp32 0 <= a <= 150."""
    e, shifted = exp_parts(F64(a) * -1.0)
    power = bitcast(I64(shifted - 0x4010000000000000))
    return fma(power, e, power)


@njit
def wide_tanh(x):
    """tanh |x|, with q = e^(-2|x|) - 1: -q / (q + 2)."""
    e, shifted = exp_parts(F64(clamped(magnitude(x), 0.0, 10.0)) * -2.0)
    power = power_of_two(shifted)
    q = fma(power, e, power - 1.0)
    d = q + 2.0
    return minus_quotient(q, d, F32(d))


@njit
def tanh(x):
    """RN32(tanh x); zeros stay."""
    y = F32(wide_tanh(x))
    return with_sign(y, x)


@njit
def wide_sigmoid(x):
    """With e = e^-|x|: 1 / (1 + e) or e / (1 + e)."""
    e = minus_exp_of_minus(clamped(magnitude(x), 0.0, 105.0))
    d = 1.0 - e
    return minus_quotient(e if x < F32(0) else -1.0, d, F32(d))


@njit
def sigmoid(x):
    """RN32(1 / (1 + e^-x))."""
    y = F32(wide_sigmoid(x))
    # 1/2 + x/4 may lie half-way between two fp32 numbers, with the next term out of binary64's sight. So x is made
    # smaller by 2^-24 of itself: more than that term, less than the distance of x/4 to any other such place.
    return fma(x, NEAR_HALF, F32(0.5)) if magnitude(x) < F32(2.0**-12) else y


@njit
def wide_silu(x):
    # Not below 2^-40, so that x/2 half-way between two subnormals falls to the side of x/2 + x^2/4.
    e = minus_exp_of_minus(clamped(magnitude(x), 2.0**-40, 110.0))
    d = 1.0 - e
    n = F64(clamped(x, -110.0, 50.0)) * (e if x < F32(0) else -1.0)
    return minus_quotient(n, d, F32(d))


@njit
def silu(x):
    """RN32(x / (1 + e^-x)); zeros stay, -0 at minus infinity."""
    y = patched(x, F32(wide_silu(x)), SILU_PATCHES)
    return x if x > F32(40) else y


@njit
def wide_softplus(x):
    """max(x, 0) + ln(1 + e) with e = e^-|x|: 2 atanh(e / (2 + e))."""
    e = minus_exp_of_minus(clamped(magnitude(x), 0.0, 110.0))
    d = 2.0 - e
    s = minus_quotient(e, d, F32(d))
    z = s * s
    rest = fma(s * z, polynomial(z, ATANH_WIDE), s + s)
    return (F64(x) if x > F32(0) else 0.0) + rest


@njit
def softplus(x):
    """RN32(ln(1 + e^x))."""
    return patched(x, F32(wide_softplus(x)), SOFTPLUS_PATCHES)


@njit
def wide_mish(x):
    """x * n / d; with e = e^-|x|, n = 1 + 2e and d = n + 2e^2, or n = e^2 + 2e and d = n + 2."""
    e = minus_exp_of_minus(clamped(magnitude(x), 0.0, 112.0))
    square = e * e
    twice = e + e
    below = x < F32(0)
    minus_n = twice - (square if below else 1.0)
    d = (2.0 if below else square + square) - minus_n
    return minus_quotient(F64(clamped(x, -112.0, 50.0)) * minus_n, d, F32(d))


@njit
def mish(x):
    """RN32(x * tanh(ln(1 + e^x))); zeros stay, -0 at minus infinity."""
    y = patched(x, F32(wide_mish(x)), MISH_PATCHES)
    return x if x > F32(40) else y


@njit
def wide_selu(x):
    q = wide_expm1(x)
    below = fma(q, SELU_HIGH, q * SELU_LOW)
    return F64(x) * SELU_SCALE if x > F32(0) else below


@njit
def selu(x):
    """RN32(scale * x) for x >= 0, RN32(scale * alpha * (e^x - 1)) below; zeros stay."""
    return x if x == F32(0) else F32(wide_selu(x))
