"""Activations that need no exponential, as functions of a block of fp32 or fp64 (SPEC.md, "Elementwise operations")."""

import triton
import triton.language as tl


@triton.jit
def divide(x, y):
    """RN(x / y) of fp32 or fp64, either of them a block."""
    if x.dtype == tl.float64:
        q = x / y
    else:
        q = tl.div_rn(x, y)
    return q


@triton.jit
def relu(x):
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def hardtanh(x, low, high):
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit
def leaky_relu(x, slope):
    return tl.where(x > 0.0, x, x * slope)


@triton.jit
def prelu(x, weight):
    return tl.where(x > 0.0, x, x * weight)


@triton.jit
def threshold(x, limit, value):
    return tl.where(x <= limit, value, x)


@triton.jit
def hardswish(x):
    inside = divide(x * (x + 3.0), tl.full([], 6.0, x.dtype))
    return tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, x, inside))


@triton.jit
def hardsigmoid(x):
    inside = divide(x + 3.0, tl.full([], 6.0, x.dtype))
    return tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, 1.0, inside))


@triton.jit
def softsign(x):
    return divide(x, tl.abs(x) + 1.0)


@triton.jit
def hardshrink(x, limit):
    return tl.where(tl.abs(x) <= limit, 0.0, x)


@triton.jit
def softshrink(x, limit):
    return tl.where(tl.abs(x) <= limit, 0.0, tl.where(x < 0.0, x + limit, x - limit))


@triton.jit
def hardtanh_gradient(g, x, low, high):
    return tl.where((x <= low) | (x >= high), 0.0, g)


@triton.jit
def leaky_relu_gradient(g, x, slope):
    return tl.where(x > 0.0, g, g * slope)


@triton.jit
def prelu_gradient(g, x, weight):
    return tl.where(x > 0.0, g, g * weight)


@triton.jit
def prelu_weight_gradient(g, x):
    return tl.where(x > 0.0, 0.0, g * x)


@triton.jit
def threshold_gradient(g, x, limit):
    return tl.where(x <= limit, 0.0, g)


@triton.jit
def hardswish_gradient(g, x):
    inside = g * (divide(x, tl.full([], 3.0, x.dtype)) + 0.5)
    return tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, g, inside))


@triton.jit
def hardsigmoid_gradient(g, x):
    return tl.where((x <= -3.0) | (x >= 3.0), 0.0, divide(g, tl.full([], 6.0, g.dtype)))


@triton.jit
def softsign_gradient(g, x):
    d = tl.abs(x) + 1.0
    return divide(g, d * d)


@triton.jit
def shrink_gradient(g, x, limit):
    return tl.where(tl.abs(x) <= limit, 0.0, g)


FUNCTIONS = {
    "relu": relu,
    "hardtanh": hardtanh,
    "leaky_relu": leaky_relu,
    "prelu": prelu,
    "threshold": threshold,
    "hardswish": hardswish,
    "hardsigmoid": hardsigmoid,
    "softsign": softsign,
    "hardshrink": hardshrink,
    "softshrink": softshrink,
    "hardtanh_gradient": hardtanh_gradient,
    "leaky_relu_gradient": leaky_relu_gradient,
    "prelu_gradient": prelu_gradient,
    "prelu_weight_gradient": prelu_weight_gradient,
    "threshold_gradient": threshold_gradient,
    "hardswish_gradient": hardswish_gradient,
    "hardsigmoid_gradient": hardsigmoid_gradient,
    "softsign_gradient": softsign_gradient,
    "shrink_gradient": shrink_gradient,
}
