"""exp, exp2, expm1 and functions made of e^x of a block of fp32 numbers, correctly rounded.

Evaluated in binary64, rounded to fp32 once, and set right at the listed inputs (coefficients/exponential.py); the proof
over all inputs is `python -m bench.prove_functions`. Every line is one rounded operation, as in
cpu/rounded/exponential.py. `wide_...` is the binary64 number before the rounding.
"""

import triton
import triton.language as tl

from repkernels.coefficients import exponential as c
from repkernels.coefficients import logarithm
from repkernels.kernels.rounded.arithmetic import (
    at_most,
    clamped,
    constant,
    magnitude,
    minus_quotient,
    patched,
    polynomial,
    power_of_two,
    scaled,
    with_sign,
)

LOG2_E = tl.constexpr(c.LOG2_E)
MINUS_LN2_HIGH = tl.constexpr(c.MINUS_LN2_HIGH)
MINUS_LN2_LOW = tl.constexpr(c.MINUS_LN2_LOW)
MAGIC = tl.constexpr(c.MAGIC)
EXP = tl.constexpr(c.EXP)
EXP2 = tl.constexpr(c.EXP2)
ATANH_WIDE = tl.constexpr(logarithm.ATANH_WIDE)
SELU_SCALE = tl.constexpr(c.SELU_SCALE)
SELU_HIGH = tl.constexpr(c.SELU_HIGH)
SELU_LOW = tl.constexpr(c.SELU_LOW)
NEAR_HALF = tl.constexpr(c.NEAR_HALF)
EXP2_PATCHES = tl.constexpr(c.EXP2_PATCHES)
SILU_PATCHES = tl.constexpr(c.SILU_PATCHES)
SOFTPLUS_PATCHES = tl.constexpr(c.SOFTPLUS_PATCHES)
MISH_PATCHES = tl.constexpr(c.MISH_PATCHES)


@triton.jit
def exp_parts(x):
    """(E, n << 52) with e^x = 2^n * (1 + E), for |x| < 2^30; n is the integer nearest to x / ln 2. x: fp64."""
    t = tl.fma(x, constant(LOG2_E), constant(MAGIC))
    n = t - constant(MAGIC)
    r = tl.fma(n, constant(MINUS_LN2_HIGH), x)
    r = tl.fma(n, constant(MINUS_LN2_LOW), r)
    return tl.fma(polynomial(r, EXP), r * r, r), t.to(tl.int64, bitcast=True) << 52


@triton.jit
def wide_exp(x):
    e, shifted = exp_parts(clamped(x, -104.0, 89.0).to(tl.float64))
    return scaled(e + constant(1.0), shifted)


@triton.jit
def exp(x):
    """RN32(e^x)."""
    return wide_exp(x).to(tl.float32)


@triton.jit
def wide_exp2(x):
    x = clamped(x, -151.0, 129.0).to(tl.float64)
    t = x + constant(MAGIC)
    r = x - (t - constant(MAGIC))
    return scaled(tl.fma(polynomial(r, EXP2), r, constant(1.0)), t.to(tl.int64, bitcast=True) << 52)


@triton.jit
def exp2(x):
    """RN32(2^x)."""
    return patched(x, wide_exp2(x).to(tl.float32), EXP2_PATCHES)


@triton.jit
def wide_expm1(x):
    """+0 at both zeros."""
    e, shifted = exp_parts(clamped(x, -104.0, 89.0).to(tl.float64))
    power = power_of_two(shifted)
    return tl.fma(power, e, power - constant(1.0))


@triton.jit
def expm1(x):
    """RN32(e^x - 1); zeros stay."""
    return tl.where(x == 0.0, x, wide_expm1(x).to(tl.float32))


@triton.jit
def minus_exp_of_minus(a):
    """-e^-a in binary64 of fp32 0 <= a <= 150."""
    e, shifted = exp_parts(a.to(tl.float64) * constant(-1.0))
    power = (shifted - 0x4010000000000000).to(tl.float64, bitcast=True)
    return tl.fma(power, e, power)


@triton.jit
def wide_tanh(x):
    """tanh |x|, with q = e^(-2|x|) - 1: -q / (q + 2)."""
    e, shifted = exp_parts(at_most(magnitude(x), 10.0).to(tl.float64) * constant(-2.0))
    power = power_of_two(shifted)
    q = tl.fma(power, e, power - constant(1.0))
    d = q + constant(2.0)
    return minus_quotient(q, d, d.to(tl.float32))


@triton.jit
def tanh(x):
    """RN32(tanh x); zeros stay."""
    return with_sign(wide_tanh(x).to(tl.float32), x)


@triton.jit
def wide_sigmoid(x):
    """With e = e^-|x|: 1 / (1 + e) or e / (1 + e)."""
    e = minus_exp_of_minus(at_most(magnitude(x), 105.0))
    d = constant(1.0) - e
    return minus_quotient(tl.where(x < 0.0, e, constant(-1.0)), d, d.to(tl.float32))


@triton.jit
def sigmoid(x):
    """RN32(1 / (1 + e^-x))."""
    y = wide_sigmoid(x).to(tl.float32)
    # 1/2 + x/4 may lie half-way between two fp32 numbers, with the next term out of binary64's sight. So x is made
    # smaller by 2^-24 of itself: more than that term, less than the distance of x/4 to any other such place.
    return tl.where(magnitude(x) < 2.0**-12, tl.fma(x, NEAR_HALF, 0.5), y)


@triton.jit
def wide_silu(x):
    # Not below 2^-40, so that x/2 half-way between two subnormals falls to the side of x/2 + x^2/4.
    e = minus_exp_of_minus(clamped(magnitude(x), 2.0**-40, 110.0))
    d = constant(1.0) - e
    n = clamped(x, -110.0, 50.0).to(tl.float64) * tl.where(x < 0.0, e, constant(-1.0))
    return minus_quotient(n, d, d.to(tl.float32))


@triton.jit
def silu(x):
    """RN32(x / (1 + e^-x)); zeros stay, -0 at minus infinity."""
    y = patched(x, wide_silu(x).to(tl.float32), SILU_PATCHES)
    return tl.where(x > 40.0, x, y)


@triton.jit
def wide_softplus(x):
    """max(x, 0) + ln(1 + e) with e = e^-|x|: 2 atanh(e / (2 + e))."""
    e = minus_exp_of_minus(at_most(magnitude(x), 110.0))
    d = constant(2.0) - e
    s = minus_quotient(e, d, d.to(tl.float32))
    z = s * s
    rest = tl.fma(s * z, polynomial(z, ATANH_WIDE), s + s)
    return tl.where(x > 0.0, x, 0.0).to(tl.float64) + rest


@triton.jit
def softplus(x):
    """RN32(ln(1 + e^x))."""
    return patched(x, wide_softplus(x).to(tl.float32), SOFTPLUS_PATCHES)


@triton.jit
def wide_mish(x):
    """x * n / d; with e = e^-|x|, n = 1 + 2e and d = n + 2e^2, or n = e^2 + 2e and d = n + 2."""
    e = minus_exp_of_minus(at_most(magnitude(x), 112.0))
    square = e * e
    minus_n = (e + e) - tl.where(x < 0.0, square, constant(1.0))
    d = tl.where(x < 0.0, constant(2.0), square + square) - minus_n
    return minus_quotient(clamped(x, -112.0, 50.0).to(tl.float64) * minus_n, d, d.to(tl.float32))


@triton.jit
def mish(x):
    """RN32(x * tanh(ln(1 + e^x))); zeros stay, -0 at minus infinity."""
    y = patched(x, wide_mish(x).to(tl.float32), MISH_PATCHES)
    return tl.where(x > 40.0, x, y)


@triton.jit
def wide_selu(x):
    q = wide_expm1(x)
    below = tl.fma(q, constant(SELU_HIGH), q * constant(SELU_LOW))
    return tl.where(x > 0.0, x.to(tl.float64) * constant(SELU_SCALE), below)


@triton.jit
def selu(x):
    """RN32(scale * x) for x >= 0, RN32(scale * alpha * (e^x - 1)) below; zeros stay."""
    return tl.where(x == 0.0, x, wide_selu(x).to(tl.float32))
