"""erf, gelu, gelu_tanh of a block of fp32 numbers, correctly rounded.

Evaluated in binary64, rounded to fp32 once, and set right at the listed inputs (coefficients/error.py). Every line is
one rounded operation, as in cpu/rounded/error.py. `wide_...` is the binary64 number before the rounding.
"""

import triton
import triton.language as tl

from repkernels.coefficients import error as c
from repkernels.kernels.functions import minus_zero
from repkernels.kernels.rounded.arithmetic import (
    at_most,
    constant,
    magnitude,
    minus_reciprocal,
    patched,
    polynomial,
    scaled,
    with_sign,
)

MAGIC = tl.constexpr(c.MAGIC)
MINUS_HALF_LOG2_E = tl.constexpr(c.MINUS_HALF_LOG2_E)
TANH_FIRST = tl.constexpr(c.TANH_FIRST)
TANH_THIRD = tl.constexpr(c.TANH_THIRD)
EXP2 = tl.constexpr(c.EXP2)
SHIFT = tl.constexpr(c.SHIFT)
MINUS_SCALE = tl.constexpr(-c.SCALE)
OFFSET = tl.constexpr(c.OFFSET)
MILLS = tl.constexpr(c.MILLS)
ERF_LAST = tl.constexpr(c.ERF_LAST)
ERF = tl.constexpr(c.ERF)
TINY = tl.constexpr(c.TINY)
GELU_TANH_PATCHES = tl.constexpr(c.GELU_TANH_PATCHES)


@triton.jit
def exp2_of_product(a, b):
    """2^(a b) for fp64 a, b, -1000 < a b < 1000; the product is not rounded."""
    m = tl.fma(a, b, constant(MAGIC))
    f = tl.fma(a, b, constant(MAGIC) - m)
    return scaled(polynomial(f, EXP2), m.to(tl.int64, bitcast=True) << 52)


@triton.jit
def wide_erf(x):
    """erf |x|."""
    t = at_most(magnitude(x), ERF_LAST).to(tl.float64)
    v = tl.fma(t * t, constant(0.125), constant(-1.0))
    return polynomial(v, ERF) * t


@triton.jit
def erf(x):
    """RN32(erf x); zeros stay."""
    return with_sign(wide_erf(x).to(tl.float32), x)


@triton.jit
def wide_gelu(x):
    """-t Phi(-t), t = |x|, to which a positive x is added. Keeps the sign of zeros and of what vanishes."""
    t = at_most(magnitude(x), 16.0).to(tl.float64)
    d = t + constant(SHIFT)
    v = tl.fma(minus_reciprocal(d, d.to(tl.float32)), constant(MINUS_SCALE), constant(OFFSET))
    q = exp2_of_product(t * t, constant(MINUS_HALF_LOG2_E)) * polynomial(v, MILLS)
    return tl.fma(t, q * -1.0, tl.where(x < 0.0, minus_zero(tl.float64), x.to(tl.float64)))


@triton.jit
def gelu(x):
    """RN32(x Phi(x)), Phi the normal distribution: x (1 + erf(x / sqrt(2))) / 2."""
    return wide_gelu(x).to(tl.float32)


@triton.jit
def wide_gelu_tanh(x):
    """With e = e^-z, z = sqrt(8 / pi) (t + 0.044715 t^3), t = |x|: x / (1 + e), or -t e / (1 + e)."""
    t = at_most(magnitude(x), 12.0).to(tl.float64)
    e = exp2_of_product(t, tl.fma(t * t, constant(TANH_THIRD), constant(TANH_FIRST)))
    d = e + constant(1.0)
    n = tl.where(x < 0.0, e * t, x.to(tl.float64) * -1.0)
    return tl.fma(n, minus_reciprocal(d, d.to(tl.float32)), constant(TINY))


@triton.jit
def gelu_tanh(x):
    """RN32(x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2); zeros stay."""
    return patched(x, with_sign(wide_gelu_tanh(x).to(tl.float32), x), GELU_TANH_PATCHES)
