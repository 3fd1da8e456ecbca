"""The functions of one argument that are correctly rounded, by name, and what is built on them alone."""

import torch
import triton
import triton.language as tl

from repkernels.kernels.rounded import half
from repkernels.kernels.rounded.error import erf, gelu, gelu_tanh
from repkernels.kernels.rounded.exponential import (
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
from repkernels.kernels.rounded.logarithm import log, log1p, log2, log10
from repkernels.kernels.rounded.root import reciprocal, rsqrt, sqrt
from repkernels.kernels.rounded.trigonometric import cos, sin


@triton.jit
def scaled_softplus(x, beta, limit):
    v = x * beta
    return tl.where(v > limit, x, tl.div_rn(softplus(v), beta))


@triton.jit
def logsigmoid(x):
    return softplus(x * -1.0) * -1.0


@triton.jit
def elu(x, alpha):
    return tl.where(x > 0.0, x, alpha * expm1(x))


@triton.jit
def celu(x, alpha):
    return tl.where(x > 0.0, x, alpha * expm1(tl.div_rn(x, alpha)))


@triton.jit
def celu_gradient(g, x, alpha):
    return tl.where(x > 0.0, g, g * exp(tl.div_rn(x, alpha)))


@triton.jit
def tanhshrink(x):
    return x - tanh(x)


@triton.jit
def tanhshrink_gradient(g, x):
    y = tanh(x)
    return g * (y * y)


@triton.jit
def glu(a, b):
    return a * sigmoid(b)


@triton.jit
def expm1_gradient(g, x):
    return g * exp(x)


@triton.jit
def sin_gradient(g, x):
    return g * cos(x)


@triton.jit
def cos_gradient(g, x):
    return g * sin(x) * -1.0


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

# For half types: functions that round to the same results with less work.
HALF = {
    (name, dtype): getattr(half, f"{name}_{kind}")
    for name in ("exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh")
    for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
}
