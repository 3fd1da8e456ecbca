"""exp, tanh, sigmoid, silu, gelu, gelu_tanh for operands and results of the half types, as in kernels/rounded/half.py.

All rely on the caller's `keep_subnormals` (fpu.py).
"""

import numpy as np
from numba import njit

from repkernels.coefficients import arithmetic
from repkernels.coefficients import half as c
from repkernels.cpu.functions import bitcast, fma
from repkernels.cpu.rounded.arithmetic import magnitude, patched, polynomial, with_sign
from repkernels.cpu.rounded.error import at_most

F32, I32 = np.float32, np.int32


def singles(values):
    return tuple(F32(v) for v in values)


SEED = I32(arithmetic.SEED)
ZERO, ONE, TWO, NO_LOW = F32(0), F32(1), F32(2), F32(0)
MAGIC, RAISED, LOWER = F32(c.MAGIC), F32(c.RAISED), F32(c.LOWER)
HALF_LOG2_E, MINUS_HALF_LOG2_E = F32(0.5 * c.LOG2_E), F32(-0.5 * c.LOG2_E)
LOG2_E, MINUS_LOG2_E, MINUS_TWO_LOG2_E = F32(c.LOG2_E), F32(-c.LOG2_E), F32(-2 * c.LOG2_E)
LOW, MINUS_LOW = F32(c.LOG2_E_LOW), F32(-c.LOG2_E_LOW)
MINUS_HALF_LOW, MINUS_TWO_LOW = F32(-0.5 * c.LOG2_E_LOW), F32(-2 * c.LOG2_E_LOW)
MINUS_FIRST, MINUS_THIRD = F32(-c.TANH_FIRST), F32(-c.TANH_THIRD)
EXP2_BF16, EXP2_FP16 = singles(c.EXP2_BF16), singles(c.EXP2_FP16)
SHIFT = F32(c.SHIFT)
MINUS_SCALE_BF16, OFFSET_BF16, MILLS_BF16 = F32(-c.SCALE_BF16), F32(c.OFFSET_BF16), singles(c.MILLS_BF16)
MINUS_SCALE_FP16, OFFSET_FP16, MILLS_FP16 = F32(-c.SCALE_FP16), F32(c.OFFSET_FP16), singles(c.MILLS_FP16)
SIGMOID_FP16_PATCHES = c.SIGMOID_FP16_PATCHES
SILU_BF16_PATCHES, SILU_FP16_PATCHES = c.SILU_BF16_PATCHES, c.SILU_FP16_PATCHES
GELU_BF16_PATCHES, GELU_TANH_FP16_PATCHES = c.GELU_BF16_PATCHES, c.GELU_TANH_FP16_PATCHES


@njit
def exponent(m):
    """n << 23 of m = MAGIC + n."""
    return I32(bitcast(m) << I32(23))


@njit
def reduced(a, b, low, start, m):
    f = fma(a, b, start - m)
    return f if low == ZERO else fma(a, low, f)


@njit
def exp2_of_product(a, b, low, start, exp2):
    """2^(a (b + low)) * 2^(start - MAGIC), a result neither subnormal nor infinite."""
    m = fma(a, b, start)
    f = reduced(a, b, low, start, m)
    p = fma(polynomial(f, exp2), f, ONE)
    return bitcast(I32(bitcast(p) + exponent(m)))


@njit
def minus_reciprocal(b):
    """-1 / b within little over half an ulp, for b > 0 far from overflow."""
    r = bitcast(I32(SEED - bitcast(b)))
    e = fma(b, r, ONE)
    r = fma(r, fma(e, e, e), r)
    return fma(r, fma(b, r, ONE), r)


@njit
def clamped(x, high):
    x = -high if x < -high else x
    return at_most(x, high)


@njit
def exp_bf16(x):
    # The square of e^(x / 2), which is neither subnormal nor infinite.
    y = exp2_of_product(clamped(x, F32(100)), HALF_LOG2_E, NO_LOW, MAGIC, EXP2_BF16)
    return with_nan(y * y, x)


@njit
def exp_fp16(x):
    return with_nan(exp2_of_product(clamped(x, F32(20)), LOG2_E, LOW, MAGIC, EXP2_FP16), x)


@njit
def sigmoid_bf16(x):
    e = exp2_of_product(at_most(magnitude(x), F32(110)), MINUS_LOG2_E, NO_LOW, RAISED, EXP2_BF16) * LOWER
    return with_nan((-e if x < ZERO else -ONE) * minus_reciprocal(e + ONE), x)


@njit
def sigmoid_fp16(x):
    e = exp2_of_product(at_most(magnitude(x), F32(24)), MINUS_LOG2_E, MINUS_LOW, MAGIC, EXP2_FP16)
    y = (-e if x < ZERO else -ONE) * minus_reciprocal(e + ONE)
    return with_nan(patched(x, y, SIGMOID_FP16_PATCHES), x)


@njit
def silu_bf16(x):
    a = at_most(magnitude(x), F32(110))
    e = exp2_of_product(a, MINUS_LOG2_E, NO_LOW, RAISED, EXP2_BF16) * LOWER
    return patched(x, (e * a if x < ZERO else -x) * minus_reciprocal(e + ONE), SILU_BF16_PATCHES)


@njit
def silu_fp16(x):
    a = at_most(magnitude(x), F32(24))
    e = exp2_of_product(a, MINUS_LOG2_E, MINUS_LOW, MAGIC, EXP2_FP16)
    return patched(x, (e * a if x < ZERO else -x) * minus_reciprocal(e + ONE), SILU_FP16_PATCHES)


@njit
def tanh_of(x, exp2, low):
    """With q = e^(-2|x|) - 1: -q / (q + 2)."""
    a = at_most(magnitude(x), F32(10))
    m = fma(a, MINUS_TWO_LOG2_E, MAGIC)
    f = reduced(a, MINUS_TWO_LOG2_E, low, MAGIC, m)
    power = bitcast(I32(exponent(m) + I32(0x3F800000)))
    q = fma(power, polynomial(f, exp2) * f, power - ONE)
    return with_sign(q * minus_reciprocal(q + TWO), x)


@njit
def tanh_bf16(x):
    return tanh_of(x, EXP2_BF16, NO_LOW)


@njit
def tanh_fp16(x):
    return tanh_of(x, EXP2_FP16, MINUS_TWO_LOW)


@njit
def gelu_bf16(x):
    t = at_most(magnitude(x), F32(15))
    e = exp2_of_product(t * t, MINUS_HALF_LOG2_E, NO_LOW, RAISED, EXP2_BF16)
    v = fma(minus_reciprocal(t + SHIFT), MINUS_SCALE_BF16, OFFSET_BF16)
    q = e * polynomial(v, MILLS_BF16) * LOWER
    return patched(x, fma(t, -q, not_negative(x)), GELU_BF16_PATCHES)


@njit
def gelu_fp16(x):
    t = at_most(magnitude(x), F32(8))
    e = exp2_of_product(t * t, MINUS_HALF_LOG2_E, MINUS_HALF_LOW, MAGIC, EXP2_FP16)
    v = fma(minus_reciprocal(t + SHIFT), MINUS_SCALE_FP16, OFFSET_FP16)
    return fma(t, -(e * polynomial(v, MILLS_FP16)), not_negative(x))


@njit
def gelu_tanh_bf16(x):
    a = at_most(magnitude(x), F32(11))
    e = exp2_of_product(a, fma(a * a, MINUS_THIRD, MINUS_FIRST), NO_LOW, RAISED, EXP2_BF16) * LOWER
    return (e * a if x < ZERO else -x) * minus_reciprocal(e + ONE)


@njit
def gelu_tanh_fp16(x):
    a = at_most(magnitude(x), F32(7))
    e = exp2_of_product(a, fma(a * a, MINUS_THIRD, MINUS_FIRST), NO_LOW, MAGIC, EXP2_FP16)
    return patched(x, (e * a if x < ZERO else -x) * minus_reciprocal(e + ONE), GELU_TANH_FP16_PATCHES)


@njit
def not_negative(x):
    """x, or -0 where x < 0. NaN stays."""
    return F32(-0.0) if x < ZERO else x


@njit
def with_nan(y, x):
    """y, or NaN where x is: integer arithmetic may have made something else of it."""
    return x if x != x else y
