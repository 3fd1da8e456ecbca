"""Division, interpolation and fused-looking sums of blocks of fp32 or fp64 (SPEC.md, "Elementwise operations")."""

import triton
import triton.language as tl

from repkernels.kernels.activations import divide
from repkernels.kernels.rounded import power
from repkernels.kernels.rounded.logarithm import log

# Added to and taken from a binary64 number below 2^52, it leaves the nearest integer.
TO_INTEGER = tl.constexpr(2.0**52)


@triton.jit
def floor_f64(x):
    """The floor of binary64 x, by additions: the instruction is not everywhere the same."""
    size = tl.abs(x)
    near = (size + TO_INTEGER) - TO_INTEGER
    near = tl.where(x < 0.0, near * -1.0, near)
    near = tl.where(near > x, near - 1.0, near)
    return tl.where(size < TO_INTEGER, near, x)


@triton.jit
def div_floor(x, y):
    a, b = x.to(tl.float64), y.to(tl.float64)
    q = a / b
    n = floor_f64(q)
    rest = tl.fma(n * -1.0, b, a)
    n = tl.where((rest != 0.0) & ((rest < 0.0) != (b < 0.0)), n - 1.0, n)
    n = tl.where(n == 0.0, q * 0.0, n)
    n = tl.where((b == 0.0) | (n != n), q, n)
    n = tl.where((tl.abs(a) == float("inf")) & (b != 0.0), float("nan"), n)
    far = tl.where((a != 0.0) & ((a < 0.0) != (b < 0.0)), -1.0, q)
    return tl.where((tl.abs(b) == float("inf")) & (tl.abs(a) < float("inf")), far, n).to(x.dtype)


@triton.jit
def div_trunc(x, y):
    q = divide(x, y).to(tl.float64)
    n = floor_f64(tl.abs(q))
    return tl.where(q < 0.0, n * -1.0, tl.where(n == 0.0, q * 0.0, n)).to(x.dtype)


@triton.jit
def div_gradient(g, x, y):
    return g * divide(divide(x, y), y) * -1.0


@triton.jit
def lerp(start, end, weight):
    d = end - start
    return tl.where(tl.abs(weight) < 0.5, start + weight * d, end - d * (1.0 - weight))


@triton.jit
def lerp_start_gradient(g, weight):
    return g * (1.0 - weight)


@triton.jit
def product(g, weight):
    return g * weight


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def subtract(x, y):
    return x - y


@triton.jit
def lerp_weight_gradient(g, start, end):
    return g * (end - start)


@triton.jit
def addcmul(x, a, b, value):
    return x + (value * a) * b


@triton.jit
def addcmul_gradient(g, other, value):
    return g * (value * other)


@triton.jit
def addcdiv(x, a, b, value):
    return x + value * divide(a, b)


@triton.jit
def addcdiv_gradient(g, b, value):
    return g * divide(value, b)


@triton.jit
def addcdiv_divisor_gradient(g, a, b, value):
    return g * (value * divide(divide(a, b), b)) * -1.0


@triton.jit
def pow(x, y):
    x, y = tl.broadcast(x, y)
    return power.pow(x, y)


@triton.jit
def pow_base(y, x):
    return pow(x, y)


@triton.jit
def pow_gradient(g, x, y):
    x, y = tl.broadcast(x, y)
    return tl.where(y == 0.0, 0.0, g * (y * power.pow(x, y - 1.0)))


@triton.jit
def pow_exponent_gradient(g, x, y):
    x, y = tl.broadcast(x, y)
    return tl.where((x == 0.0) & (y >= 0.0), 0.0, g * (power.pow(x, y) * log(x)))


@triton.jit
def pow_base_gradient(g, y, x):
    return pow_exponent_gradient(g, x, y)


FUNCTIONS = {
    "pow": pow,
    "pow_base": pow_base,
    "pow_gradient": pow_gradient,
    "pow_exponent_gradient": pow_exponent_gradient,
    "pow_base_gradient": pow_base_gradient,
    "div": divide,
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
