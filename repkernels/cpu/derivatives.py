"""First derivatives times the gradient g, of fp32 numbers (SPEC.md, "Derivatives"), as in kernels/derivatives.py."""

import numpy as np

from repkernels.coefficients import derivatives as constants
from repkernels.cpu.activations import inlined
from repkernels.cpu.divide import divide
from repkernels.cpu.functions import exp_f32, fma

F32 = np.float32
ZERO, HALF, ONE, TWO, FOUR, SIXTEEN, FAR = (F32(c) for c in (0, 0.5, 1, 2, 4, 16, 128))

LN2, LOG2_E, LOG10_E = F32(constants.LN2), F32(constants.LOG2_E), F32(constants.LOG10_E)
TWO_OVER_SQRT_PI = F32(constants.TWO_OVER_SQRT_PI)
MINUS_ONE_OVER_SQRT_2PI = F32(-constants.ONE_OVER_SQRT_2PI)
MILLS_SCALE = F32(constants.MILLS_SCALE)
M0, M1, M2, M3, M4, M5, M6, M7, M8, M9 = (F32(c) for c in constants.MILLS)
GELU_LINEAR, GELU_CUBIC = F32(constants.GELU_LINEAR), F32(constants.GELU_CUBIC)
GELU_CUBIC_SLOPE = F32(constants.GELU_CUBIC_SLOPE)
SELU_SCALE, SELU_SCALE_ALPHA = F32(constants.SELU_SCALE), F32(constants.SELU_SCALE_ALPHA)


@inlined
def one_over(d):
    return divide(ONE, d)


@inlined
def not_below(x, limit):
    return limit if x < limit else x


@inlined
def exp_of_minus_square(a, h, scale):
    """e^(-scale * a^2), h = RN(a * a), scale a power of two: the rounding of the square is made good."""
    rest = fma(a, a, -h)
    e = exp_f32(h * -scale)
    return fma(e, rest * -scale, e)


@inlined
def exp_gradient(g, y):
    return g * y


@inlined
def exp2_gradient(g, y):
    return g * (y * LN2)


@inlined
def log_gradient(g, x):
    return divide(g, x)


@inlined
def log2_gradient(g, x):
    return divide(g, x) * LOG2_E


@inlined
def log10_gradient(g, x):
    return divide(g, x) * LOG10_E


@inlined
def log1p_gradient(g, x):
    return divide(g, x + ONE)


@inlined
def sqrt_gradient(g, y):
    return divide(g, y + y)


@inlined
def rsqrt_gradient(g, y):
    return (g * -HALF) * (y * (y * y))


@inlined
def reciprocal_gradient(g, y):
    return g * (y * y) * -ONE


@inlined
def tanh_gradient(g, x):
    t = exp_f32(abs(x) * -TWO)
    d = t + ONE
    return g * divide(t * FOUR, d * d)


@inlined
def sigmoid_gradient(g, x):
    t = exp_f32(abs(x) * -ONE)
    d = t + ONE
    return g * divide(t, d * d)


@inlined
def erf_gradient(g, x):
    a = abs(x)
    a = SIXTEEN if a > SIXTEEN else a
    return g * (exp_of_minus_square(a, a * a, ONE) * TWO_OVER_SQRT_PI)


@inlined
def gelu_gradient(g, x):
    a = abs(x)
    a = SIXTEEN if a > SIXTEEN else a
    e = exp_of_minus_square(a, a * a, HALF)
    u = one_over(fma(a, MILLS_SCALE, ONE))
    p = fma(u, M9, M8)
    p = fma(p, u, M7)
    p = fma(p, u, M6)
    p = fma(p, u, M5)
    p = fma(p, u, M4)
    p = fma(p, u, M3)
    p = fma(p, u, M2)
    p = fma(p, u, M1)
    p = fma(p, u, M0)
    left = e * fma(a, MINUS_ONE_OVER_SQRT_2PI, p * u)
    return g * (ONE - left if x > ZERO else left)


@inlined
def silu_slope(x, v):
    """sigmoid(v) * (1 + x * (1 - sigmoid(v)))."""
    t = exp_f32(abs(v) * -ONE)
    r = one_over(t + ONE)
    q = t * r
    above = v >= ZERO
    return (r if above else q) * (x * (q if above else r) + ONE)


@inlined
def silu_gradient(g, x):
    x = not_below(x, -FAR)
    x = FAR if x > FAR else x
    return g * silu_slope(x, x)


@inlined
def gelu_tanh_gradient(g, x):
    x = not_below(x, -SIXTEEN)
    x = SIXTEEN if x > SIXTEEN else x
    w = x * x
    z = x * fma(w, GELU_CUBIC, GELU_LINEAR)
    slope = x * fma(w, GELU_CUBIC_SLOPE, GELU_LINEAR)
    return g * silu_slope(slope, z)


@inlined
def sigmoid_of(v):
    """sigmoid(v) within 3 ulp; v = -inf and inf give 0 and 1."""
    t = exp_f32(abs(v) * -ONE)
    r = one_over(t + ONE)
    return r if v >= ZERO else t * r


@inlined
def softplus_gradient(g, x, beta, limit):
    v = x * beta
    return g if v > limit else g * sigmoid_of(v)


@inlined
def logsigmoid_gradient(g, x):
    return g * sigmoid_of(x * -ONE)


@inlined
def mish_gradient(g, x):
    x = not_below(x, -FAR)
    x = FAR if x > FAR else x
    t = exp_f32(abs(x) * -ONE)
    above = x >= ZERO
    n = t + t + ONE if above else t * (t + TWO)
    d = n + ((t + t) * t if above else TWO)
    m = (t * (t + ONE)) * (t * FOUR if above else FOUR)
    r = one_over(d)
    return g * (n * r + x * ((m * r) * r))


@inlined
def elu_gradient(g, x, alpha):
    slope = alpha * exp_f32(ZERO if x > ZERO else x)
    return g if x > ZERO else g * slope


@inlined
def selu_gradient(g, x):
    slope = exp_f32(ZERO if x > ZERO else x) * SELU_SCALE_ALPHA
    return g * (SELU_SCALE if x > ZERO else slope)


@inlined
def glu_gradient(g, b):
    return g * sigmoid_of(b)


@inlined
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
