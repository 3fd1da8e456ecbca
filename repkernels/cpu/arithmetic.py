"""Division, interpolation and sums with products of fp32 or fp64 numbers (SPEC.md, "Elementwise operations")."""

import numpy as np

from repkernels.cpu.activations import HALF, ONE, ZERO, inlined
from repkernels.cpu.divide import divide
from repkernels.cpu.functions import fma
from repkernels.cpu.rounded import power
from repkernels.cpu.rounded.logarithm import log

F64 = np.float64


@inlined
def div(x, y):
    return divide(x, y)


@inlined
def div_floor(x, y):
    a, b = F64(x), F64(y)
    q = divide(a, b)
    n = np.floor(q)
    rest = fma(-n, b, a)
    if (rest != 0.0) & ((rest < 0.0) != (b < 0.0)):
        n = n - 1.0
    if n == 0.0:
        n = q * 0.0
    if (b == 0.0) | (n != n):
        n = q
    if np.isinf(a) & (b != 0.0):
        n = np.nan
    if np.isinf(b) & (abs(a) < np.inf):
        n = -1.0 if (a != 0.0) & ((a < 0.0) != (b < 0.0)) else q
    return type(x)(n)


@inlined
def div_trunc(x, y):
    return np.trunc(divide(x, y))


@inlined
def div_gradient(g, x, y):
    return -(g * divide(divide(x, y), y))


@inlined
def lerp(start, end, weight):
    d = end - start
    return start + weight * d if abs(weight) < HALF else end - d * (ONE - weight)


@inlined
def lerp_start_gradient(g, weight):
    return g * (ONE - weight)


@inlined
def product(g, weight):
    return g * weight


@inlined
def add(x, y):
    return x + y


@inlined
def subtract(x, y):
    return x - y


@inlined
def lerp_weight_gradient(g, start, end):
    return g * (end - start)


@inlined
def addcmul(x, a, b, value):
    return x + (value * a) * b


@inlined
def addcmul_gradient(g, other, value):
    return g * (value * other)


@inlined
def addcdiv(x, a, b, value):
    return x + value * divide(a, b)


@inlined
def addcdiv_gradient(g, b, value):
    return g * divide(value, b)


@inlined
def addcdiv_divisor_gradient(g, a, b, value):
    return -(g * (value * divide(divide(a, b), b)))


power_of = power.pow


@inlined
def pow(x, y):
    return power_of(x, y)


@inlined
def pow_base(y, x):
    return power_of(x, y)


@inlined
def pow_gradient(g, x, y):
    return ZERO if y == ZERO else g * (y * power_of(x, y - ONE))


@inlined
def pow_exponent_gradient(g, x, y):
    return ZERO if (x == ZERO) & (y >= ZERO) else g * (power_of(x, y) * log(x))


@inlined
def pow_base_gradient(g, y, x):
    return pow_exponent_gradient(g, x, y)


FUNCTIONS = {
    "pow": pow,
    "pow_base": pow_base,
    "pow_gradient": pow_gradient,
    "pow_exponent_gradient": pow_exponent_gradient,
    "pow_base_gradient": pow_base_gradient,
    "div": div,
    "div_floor": div_floor,
    "div_trunc": div_trunc,
    "div_gradient": div_gradient,
    "lerp": lerp,
    "lerp_start_gradient": lerp_start_gradient,
    "product": product,
    "add": add,
    "subtract": subtract,
    "lerp_weight_gradient": lerp_weight_gradient,
    "addcmul": addcmul,
    "addcmul_gradient": addcmul_gradient,
    "addcdiv": addcdiv,
    "addcdiv_gradient": addcdiv_gradient,
    "addcdiv_divisor_gradient": addcdiv_divisor_gradient,
}
