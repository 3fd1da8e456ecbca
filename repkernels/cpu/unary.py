"""The functions of one argument that are correctly rounded, by name, and what is built on them alone."""

from repkernels.cpu.activations import inlined
from repkernels.cpu.derivatives import ZERO
from repkernels.cpu.divide import divide
from repkernels.cpu.rounded.error import erf, gelu, gelu_tanh
from repkernels.cpu.rounded.exponential import (
    exp,
    exp2,
    expm1,
    mish,
    selu,
    sigmoid,
    silu,
    softplus,
    tanh,
)
from repkernels.cpu.rounded.logarithm import log, log1p, log2, log10
from repkernels.cpu.rounded.root import reciprocal, rsqrt, sqrt
from repkernels.cpu.rounded.trigonometric import cos, sin


@inlined
def scaled_softplus(x, beta, limit):
    v = x * beta
    return x if v > limit else divide(softplus(v), beta)


@inlined
def logsigmoid(x):
    return -softplus(-x)


@inlined
def elu(x, alpha):
    return x if x > ZERO else alpha * expm1(x)


@inlined
def celu(x, alpha):
    return x if x > ZERO else alpha * expm1(divide(x, alpha))


@inlined
def celu_gradient(g, x, alpha):
    return g if x > ZERO else g * exp(divide(x, alpha))


@inlined
def tanhshrink(x):
    return x - tanh(x)


@inlined
def tanhshrink_gradient(g, x):
    y = tanh(x)
    return g * (y * y)


@inlined
def glu(a, b):
    return a * sigmoid(b)


@inlined
def expm1_gradient(g, x):
    return g * exp(x)


@inlined
def sin_gradient(g, x):
    return g * cos(x)


@inlined
def cos_gradient(g, x):
    return -(g * sin(x))


FUNCTIONS = {
    "sin": sin,
    "cos": cos,
    "sin_gradient": sin_gradient,
    "cos_gradient": cos_gradient,
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "rsqrt": rsqrt,
    "reciprocal": reciprocal,
    "sqrt": sqrt,
    "silu": silu,
    "softplus": scaled_softplus,
    "logsigmoid": logsigmoid,
    "mish": mish,
    "elu": elu,
    "selu": selu,
    "celu": celu,
    "tanhshrink": tanhshrink,
    "glu": glu,
    "expm1_gradient": expm1_gradient,
    "celu_gradient": celu_gradient,
    "tanhshrink_gradient": tanhshrink_gradient,
}
