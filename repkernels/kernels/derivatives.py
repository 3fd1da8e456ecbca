"""First derivatives times the gradient g, as functions of blocks of fp32 (SPEC.md, "Derivatives").

x is the argument of the function, y its result. Exponentials are `exp_f32` of an argument <= 0, so these formulas stay
in fp32; what the function itself rounds correctly is used where it is the whole derivative.
"""

import triton
import triton.language as tl

from repkernels.coefficients import derivatives as constants
from repkernels.kernels.functions import exp_f32

LN2 = tl.constexpr(constants.LN2)
LOG2_E = tl.constexpr(constants.LOG2_E)
LOG10_E = tl.constexpr(constants.LOG10_E)
TWO_OVER_SQRT_PI = tl.constexpr(constants.TWO_OVER_SQRT_PI)
MINUS_ONE_OVER_SQRT_2PI = tl.constexpr(-constants.ONE_OVER_SQRT_2PI)
MILLS_SCALE = tl.constexpr(constants.MILLS_SCALE)
M0, M1, M2, M3, M4, M5, M6, M7, M8, M9 = (tl.constexpr(c) for c in constants.MILLS)
GELU_LINEAR = tl.constexpr(constants.GELU_LINEAR)
GELU_CUBIC = tl.constexpr(constants.GELU_CUBIC)
GELU_CUBIC_SLOPE = tl.constexpr(constants.GELU_CUBIC_SLOPE)
SELU_SCALE = tl.constexpr(constants.SELU_SCALE)
SELU_SCALE_ALPHA = tl.constexpr(constants.SELU_SCALE_ALPHA)


@triton.jit
def one_over(d):
    return tl.div_rn(tl.full([], 1.0, tl.float32), d)


@triton.jit
def not_below(x, limit):
    return tl.where(x < limit, limit, x)


@triton.jit
def exp_of_minus_square(a, h, SCALE: tl.constexpr):
    """e^(-SCALE * a^2), h = RN(a * a), SCALE a power of two: the rounding of the square is made good."""
    rest = tl.fma(a, a, h * -1.0)
    e = exp_f32(h * -SCALE)
    return tl.fma(e, rest * -SCALE, e)


@triton.jit
def exp_gradient(g, y):
    return g * y


@triton.jit
def exp2_gradient(g, y):
    return g * (y * LN2)


@triton.jit
def log_gradient(g, x):
    return tl.div_rn(g, x)


@triton.jit
def log2_gradient(g, x):
    return tl.div_rn(g, x) * LOG2_E


@triton.jit
def log10_gradient(g, x):
    return tl.div_rn(g, x) * LOG10_E


@triton.jit
def log1p_gradient(g, x):
    return tl.div_rn(g, x + 1.0)


@triton.jit
def sqrt_gradient(g, y):
    return tl.div_rn(g, y + y)


@triton.jit
def rsqrt_gradient(g, y):
    return (g * -0.5) * (y * (y * y))


@triton.jit
def reciprocal_gradient(g, y):
    return g * (y * y) * -1.0


@triton.jit
def tanh_gradient(g, x):
    t = exp_f32(tl.abs(x) * -2.0)
    d = t + 1.0
    return g * tl.div_rn(t * 4.0, d * d)


@triton.jit
def sigmoid_gradient(g, x):
    t = exp_f32(tl.abs(x) * -1.0)
    d = t + 1.0
    return g * tl.div_rn(t, d * d)


@triton.jit
def erf_gradient(g, x):
    a = tl.abs(x)
    a = tl.where(a > 16.0, 16.0, a)
    return g * (exp_of_minus_square(a, a * a, 1.0) * TWO_OVER_SQRT_PI)


@triton.jit
def gelu_gradient(g, x):
    a = tl.abs(x)
    a = tl.where(a > 16.0, 16.0, a)
    e = exp_of_minus_square(a, a * a, 0.5)
    u = one_over(tl.fma(a, MILLS_SCALE, 1.0))
    p = tl.fma(u, M9, M8)
    p = tl.fma(p, u, M7)
    p = tl.fma(p, u, M6)
    p = tl.fma(p, u, M5)
    p = tl.fma(p, u, M4)
    p = tl.fma(p, u, M3)
    p = tl.fma(p, u, M2)
    p = tl.fma(p, u, M1)
    p = tl.fma(p, u, M0)
    left = e * tl.fma(a, MINUS_ONE_OVER_SQRT_2PI, p * u)
    return g * tl.where(x > 0.0, 1.0 - left, left)


@triton.jit
def silu_slope(x, v):
    """sigmoid(v) * (1 + x * (1 - sigmoid(v)))."""
    t = exp_f32(tl.abs(v) * -1.0)
    r = one_over(t + 1.0)
    q = t * r
    above = v >= 0.0
    return tl.where(above, r, q) * (x * tl.where(above, q, r) + 1.0)


@triton.jit
def silu_gradient(g, x):
    x = not_below(x, -128.0)
    x = tl.where(x > 128.0, 128.0, x)
    return g * silu_slope(x, x)


@triton.jit
def gelu_tanh_gradient(g, x):
    x = not_below(x, -16.0)
    x = tl.where(x > 16.0, 16.0, x)
    w = x * x
    z = x * tl.fma(w, GELU_CUBIC, GELU_LINEAR)
    slope = x * tl.fma(w, GELU_CUBIC_SLOPE, GELU_LINEAR)
    return g * silu_slope(slope, z)


@triton.jit
def sigmoid_of(v):
    """sigmoid(v) within 3 ulp; v = -inf and inf give 0 and 1."""
    t = exp_f32(tl.abs(v) * -1.0)
    r = one_over(t + 1.0)
    return tl.where(v >= 0.0, r, t * r)


@triton.jit
def softplus_gradient(g, x, beta, limit):
    v = x * beta
    return tl.where(v > limit, g, g * sigmoid_of(v))


@triton.jit
def logsigmoid_gradient(g, x):
    return g * sigmoid_of(x * -1.0)


@triton.jit
def mish_gradient(g, x):
    x = not_below(x, -128.0)
    x = tl.where(x > 128.0, 128.0, x)
    t = exp_f32(tl.abs(x) * -1.0)
    above = x >= 0.0
    n = tl.where(above, t + t + 1.0, t * (t + 2.0))
    d = n + tl.where(above, (t + t) * t, 2.0)
    m = (t * (t + 1.0)) * tl.where(above, t * 4.0, 4.0)
    r = one_over(d)
    return g * (n * r + x * ((m * r) * r))


@triton.jit
def elu_gradient(g, x, alpha):
    slope = alpha * exp_f32(tl.where(x > 0.0, 0.0, x))
    return tl.where(x > 0.0, g, g * slope)


@triton.jit
def selu_gradient(g, x):
    slope = exp_f32(tl.where(x > 0.0, 0.0, x)) * SELU_SCALE_ALPHA
    return g * tl.where(x > 0.0, SELU_SCALE, slope)


@triton.jit
def glu_gradient(g, b):
    return g * sigmoid_of(b)


@triton.jit
def glu_gate_gradient(g, a, b):
    return sigmoid_gradient(g * a, b)


FUNCTIONS = {
    "exp_gradient": exp_gradient,
    "exp2_gradient": exp2_gradient,
    "log_gradient": log_gradient,
    "log2_gradient": log2_gradient,
    "log10_gradient": log10_gradient,
    "log1p_gradient": log1p_gradient,
    "sqrt_gradient": sqrt_gradient,
    "rsqrt_gradient": rsqrt_gradient,
    "reciprocal_gradient": reciprocal_gradient,
    "tanh_gradient": tanh_gradient,
    "sigmoid_gradient": sigmoid_gradient,
    "erf_gradient": erf_gradient,
    "gelu_gradient": gelu_gradient,
    "gelu_tanh_gradient": gelu_tanh_gradient,
    "silu_gradient": silu_gradient,
    "softplus_gradient": softplus_gradient,
    "logsigmoid_gradient": logsigmoid_gradient,
    "mish_gradient": mish_gradient,
    "elu_gradient": elu_gradient,
    "selu_gradient": selu_gradient,
    "glu_gradient": glu_gradient,
    "glu_gate_gradient": glu_gate_gradient,
}
