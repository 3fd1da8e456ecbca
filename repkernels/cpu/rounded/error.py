"""erf, gelu, gelu_tanh of one fp32 number, correctly rounded, as in kernels/rounded/error.py.

Each is evaluated in binary64 by the same operations as there, rounded to fp32 once, and set right at the listed inputs.
`wide_...` is the binary64 number before the rounding. All rely on the caller's `keep_subnormals` (fpu.py).
"""

import numpy as np
from numba import njit

from repkernels.coefficients import error as c
from repkernels.cpu.functions import bitcast, fma
from repkernels.cpu.rounded.arithmetic import magnitude, minus_reciprocal, patched, polynomial, scaled, with_sign

F32, F64, I64 = np.float32, np.float64, np.int64

MAGIC, MINUS_HALF_LOG2_E, TANH_FIRST, TANH_THIRD = c.MAGIC, c.MINUS_HALF_LOG2_E, c.TANH_FIRST, c.TANH_THIRD
SHIFT, MINUS_SCALE, OFFSET, TINY = c.SHIFT, -c.SCALE, c.OFFSET, c.TINY
EXP2, MILLS, ERF, GELU_TANH_PATCHES = c.EXP2, c.MILLS, c.ERF, c.GELU_TANH_PATCHES
ERF_LAST, GELU_LAST, GELU_TANH_LAST = F32(c.ERF_LAST), F32(16), F32(12)


@njit
def at_most(x, high):
    """x, or high where that is less; NaN stays."""
    return high if x > high else x


@njit
def exp2_of_product(a, b):
    """2^(a b) for -1000 < a b < 1000; the product is not rounded."""
    m = fma(a, b, MAGIC)
    f = fma(a, b, MAGIC - m)
    return scaled(polynomial(f, EXP2), I64(bitcast(m) << 52))


@njit
def wide_erf(x):
    """erf |x|."""
    t = F64(at_most(magnitude(x), ERF_LAST))
    v = fma(t * t, 0.125, -1.0)
    return polynomial(v, ERF) * t


@njit
def erf(x):
    """RN32(erf x); zeros stay."""
    return with_sign(F32(wide_erf(x)), x)


@njit
def wide_gelu(x):
    """-t Phi(-t), t = |x|, to which a positive x is added. Keeps the sign of zeros and of what vanishes."""
    t = F64(at_most(magnitude(x), GELU_LAST))
    d = t + SHIFT
    v = fma(minus_reciprocal(d, F32(d)), MINUS_SCALE, OFFSET)
    q = exp2_of_product(t * t, MINUS_HALF_LOG2_E) * polynomial(v, MILLS)
    return fma(t, -q, -0.0 if x < F32(0) else F64(x))


@njit
def gelu(x):
    """RN32(x Phi(x)), Phi the normal distribution: x (1 + erf(x / sqrt(2))) / 2."""
    return F32(wide_gelu(x))


@njit
def wide_gelu_tanh(x):
    """With e = e^-z, z = sqrt(8 / pi) (t + 0.044715 t^3), t = |x|: x / (1 + e), or -t e / (1 + e)."""
    t = F64(at_most(magnitude(x), GELU_TANH_LAST))
    e = exp2_of_product(t, fma(t * t, TANH_THIRD, TANH_FIRST))
    d = e + 1.0
    n = e * t if x < F32(0) else -F64(x)
    return fma(n, minus_reciprocal(d, F32(d)), TINY)


@njit
def gelu_tanh(x):
    """RN32(x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2); zeros stay."""
    return patched(x, with_sign(F32(wide_gelu_tanh(x)), x), GELU_TANH_PATCHES)
