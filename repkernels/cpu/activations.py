"""Activations that need no exponential, of one fp32 or fp64 number (SPEC.md, "Elementwise operations")."""

import numpy as np
from numba import njit

from repkernels.cpu.divide import divide

# Made part of the loop that calls them: compiled once, not once more by themselves.
inlined = njit(inline="always")

F32 = np.float32
ZERO, HALF, ONE, THREE, SIX = F32(0), F32(0.5), F32(1), F32(3), F32(6)


@inlined
def like(x, constant):
    """A constant, exact in fp32, in x's format."""
    return type(x)(constant)


@inlined
def relu(x):
    return like(x, ZERO) if x <= ZERO else x


@inlined
def hardtanh(x, low, high):
    return low if x < low else (high if x > high else x)


@inlined
def leaky_relu(x, slope):
    return x if x > ZERO else x * slope


@inlined
def prelu(x, weight):
    return x if x > ZERO else x * weight


@inlined
def threshold(x, limit, value):
    return value if x <= limit else x


@inlined
def hardswish(x):
    inside = divide(x * (x + THREE), like(x, SIX))
    return like(x, ZERO) if x <= -THREE else (x if x >= THREE else inside)


@inlined
def hardsigmoid(x):
    inside = divide(x + THREE, like(x, SIX))
    return like(x, ZERO) if x <= -THREE else (like(x, ONE) if x >= THREE else inside)


@inlined
def softsign(x):
    return divide(x, abs(x) + ONE)


@inlined
def hardshrink(x, limit):
    return like(x, ZERO) if abs(x) <= limit else x


@inlined
def softshrink(x, limit):
    return like(x, ZERO) if abs(x) <= limit else (x + limit if x < ZERO else x - limit)


@inlined
def hardtanh_gradient(g, x, low, high):
    return like(g, ZERO) if (x <= low) | (x >= high) else g


@inlined
def leaky_relu_gradient(g, x, slope):
    return g if x > ZERO else g * slope


@inlined
def prelu_gradient(g, x, weight):
    return g if x > ZERO else g * weight


@inlined
def prelu_weight_gradient(g, x):
    return like(g, ZERO) if x > ZERO else g * x


@inlined
def threshold_gradient(g, x, limit):
    return like(g, ZERO) if x <= limit else g


@inlined
def hardswish_gradient(g, x):
    inside = g * (divide(x, like(x, THREE)) + HALF)
    return like(g, ZERO) if x <= -THREE else (g if x >= THREE else inside)


@inlined
def hardsigmoid_gradient(g, x):
    return like(g, ZERO) if (x <= -THREE) | (x >= THREE) else divide(g, like(g, SIX))


@inlined
def softsign_gradient(g, x):
    d = abs(x) + ONE
    return divide(g, d * d)


@inlined
def shrink_gradient(g, x, limit):
    return like(g, ZERO) if abs(x) <= limit else g


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
