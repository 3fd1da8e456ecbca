"""exp, tanh, sigmoid, silu, gelu, gelu_tanh for operands and results of the half types, in fp32 alone.

x is a widened half number. The result, rounded to the half type, is RN16(RN32(f(x))): that of the correctly rounded
functions, for all 65536 inputs (tests/test_rounded_half.py), with a fraction of their work. Every line is one rounded
operation, as in cpu/rounded/half.py.
"""

import triton
import triton.language as tl

from repkernels.coefficients import arithmetic
from repkernels.coefficients import half as c
from repkernels.kernels.functions import minus_zero
from repkernels.kernels.rounded.arithmetic import at_most, clamped, magnitude, patched, with_sign

SEED = tl.constexpr(arithmetic.SEED)
MAGIC = tl.constexpr(c.MAGIC)
RAISED = tl.constexpr(c.RAISED)
LOWER = tl.constexpr(c.LOWER)
LOG2_E = tl.constexpr(c.LOG2_E)
LOG2_E_LOW = tl.constexpr(c.LOG2_E_LOW)
TANH_FIRST = tl.constexpr(c.TANH_FIRST)
TANH_THIRD = tl.constexpr(c.TANH_THIRD)
EXP2_BF16 = tl.constexpr(c.EXP2_BF16)
EXP2_FP16 = tl.constexpr(c.EXP2_FP16)
SHIFT = tl.constexpr(c.SHIFT)
MINUS_SCALE_BF16 = tl.constexpr(-c.SCALE_BF16)
MINUS_SCALE_FP16 = tl.constexpr(-c.SCALE_FP16)
OFFSET_BF16 = tl.constexpr(c.OFFSET_BF16)
OFFSET_FP16 = tl.constexpr(c.OFFSET_FP16)
MILLS_BF16 = tl.constexpr(c.MILLS_BF16)
MILLS_FP16 = tl.constexpr(c.MILLS_FP16)
SIGMOID_FP16_PATCHES = tl.constexpr(c.SIGMOID_FP16_PATCHES)
SILU_BF16_PATCHES = tl.constexpr(c.SILU_BF16_PATCHES)
SILU_FP16_PATCHES = tl.constexpr(c.SILU_FP16_PATCHES)
GELU_BF16_PATCHES = tl.constexpr(c.GELU_BF16_PATCHES)
GELU_TANH_FP16_PATCHES = tl.constexpr(c.GELU_TANH_FP16_PATCHES)


@triton.jit
def horner(x, COEFFICIENTS: tl.constexpr):
    """Horner's rule by fma; COEFFICIENTS: a tuple, highest degree first."""
    p = tl.fma(x, COEFFICIENTS[0], COEFFICIENTS[1])
    for i in tl.static_range(2, len(COEFFICIENTS)):
        p = tl.fma(p, x, COEFFICIENTS[i])
    return p


@triton.jit
def exponent(m):
    """n << 23 of m = MAGIC + n."""
    return m.to(tl.int32, bitcast=True) << 23


@triton.jit
def exp2_of_product(a, b, FROM: tl.constexpr, EXP2: tl.constexpr, FACTOR: tl.constexpr):
    """2^(a b) * 2^(FROM - MAGIC), a result neither subnormal nor infinite. FACTOR: b = FACTOR * log2(e), to its last
    digit; 0 where b is taken as it is."""
    m = tl.fma(a, b, FROM)
    f = tl.fma(a, b, FROM - m)
    if FACTOR != 0:
        f = tl.fma(a, FACTOR * LOG2_E_LOW, f)
    p = tl.fma(horner(f, EXP2), f, 1.0)
    return (p.to(tl.int32, bitcast=True) + exponent(m)).to(tl.float32, bitcast=True)


@triton.jit
def minus_reciprocal(b):
    """-1 / b within little over half an ulp, for b > 0 far from overflow."""
    r = (tl.full([], SEED, tl.int32) - b.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    e = tl.fma(b, r, 1.0)
    r = tl.fma(r, tl.fma(e, e, e), r)
    return tl.fma(r, tl.fma(b, r, 1.0), r)


@triton.jit
def exp_bf16(x):
    # The square of e^(x / 2), which is neither subnormal nor infinite.
    y = exp2_of_product(clamped(x, -100.0, 100.0), 0.5 * LOG2_E, MAGIC, EXP2_BF16, 0.0)
    return with_nan(y * y, x)


@triton.jit
def exp_fp16(x):
    return with_nan(exp2_of_product(clamped(x, -20.0, 20.0), LOG2_E, MAGIC, EXP2_FP16, 1.0), x)


@triton.jit
def sigmoid_bf16(x):
    e = exp2_of_product(at_most(magnitude(x), 110.0), -LOG2_E, RAISED, EXP2_BF16, 0.0) * LOWER
    return with_nan(tl.where(x < 0.0, e * -1.0, -1.0) * minus_reciprocal(e + 1.0), x)


@triton.jit
def sigmoid_fp16(x):
    e = exp2_of_product(at_most(magnitude(x), 24.0), -LOG2_E, MAGIC, EXP2_FP16, -1.0)
    y = tl.where(x < 0.0, e * -1.0, -1.0) * minus_reciprocal(e + 1.0)
    return with_nan(patched(x, y, SIGMOID_FP16_PATCHES), x)


@triton.jit
def silu_bf16(x):
    a = at_most(magnitude(x), 110.0)
    e = exp2_of_product(a, -LOG2_E, RAISED, EXP2_BF16, 0.0) * LOWER
    return patched(x, tl.where(x < 0.0, e * a, x * -1.0) * minus_reciprocal(e + 1.0), SILU_BF16_PATCHES)


@triton.jit
def silu_fp16(x):
    a = at_most(magnitude(x), 24.0)
    e = exp2_of_product(a, -LOG2_E, MAGIC, EXP2_FP16, -1.0)
    return patched(x, tl.where(x < 0.0, e * a, x * -1.0) * minus_reciprocal(e + 1.0), SILU_FP16_PATCHES)


@triton.jit
def tanh_of(x, EXP2: tl.constexpr, FACTOR: tl.constexpr):
    """With q = e^(-2|x|) - 1: -q / (q + 2)."""
    a = at_most(magnitude(x), 10.0)
    m = tl.fma(a, -2.0 * LOG2_E, MAGIC)
    f = tl.fma(a, -2.0 * LOG2_E, MAGIC - m)
    if FACTOR != 0:
        f = tl.fma(a, FACTOR * LOG2_E_LOW, f)
    power = (exponent(m) + 0x3F800000).to(tl.float32, bitcast=True)
    q = tl.fma(power, horner(f, EXP2) * f, power - 1.0)
    return with_sign(q * minus_reciprocal(q + 2.0), x)


@triton.jit
def tanh_bf16(x):
    return tanh_of(x, EXP2_BF16, 0.0)


@triton.jit
def tanh_fp16(x):
    return tanh_of(x, EXP2_FP16, -2.0)


@triton.jit
def gelu_bf16(x):
    t = at_most(magnitude(x), 15.0)
    e = exp2_of_product(t * t, -0.5 * LOG2_E, RAISED, EXP2_BF16, 0.0)
    v = tl.fma(minus_reciprocal(t + SHIFT), MINUS_SCALE_BF16, OFFSET_BF16)
    q = e * horner(v, MILLS_BF16) * LOWER
    return patched(x, tl.fma(t, q * -1.0, not_negative(x)), GELU_BF16_PATCHES)


@triton.jit
def gelu_fp16(x):
    t = at_most(magnitude(x), 8.0)
    e = exp2_of_product(t * t, -0.5 * LOG2_E, MAGIC, EXP2_FP16, -0.5)
    v = tl.fma(minus_reciprocal(t + SHIFT), MINUS_SCALE_FP16, OFFSET_FP16)
    return tl.fma(t, e * horner(v, MILLS_FP16) * -1.0, not_negative(x))


@triton.jit
def gelu_tanh_bf16(x):
    a = at_most(magnitude(x), 11.0)
    e = exp2_of_product(a, tl.fma(a * a, -TANH_THIRD, -TANH_FIRST), RAISED, EXP2_BF16, 0.0) * LOWER
    return tl.where(x < 0.0, e * a, x * -1.0) * minus_reciprocal(e + 1.0)


@triton.jit
def gelu_tanh_fp16(x):
    a = at_most(magnitude(x), 7.0)
    e = exp2_of_product(a, tl.fma(a * a, -TANH_THIRD, -TANH_FIRST), MAGIC, EXP2_FP16, 0.0)
    return patched(x, tl.where(x < 0.0, e * a, x * -1.0) * minus_reciprocal(e + 1.0), GELU_TANH_FP16_PATCHES)


@triton.jit
def not_negative(x):
    """x, or -0 where x < 0. NaN stays."""
    return tl.where(x < 0.0, minus_zero(tl.float32), x)


@triton.jit
def with_nan(y, x):
    """y, or NaN where x is: integer arithmetic has made something else of it."""
    return tl.where(x != x, x, y)
