"""sqrt, rsqrt and reciprocal: quotients with their remainders, and Newton's step from fp32's square root."""

import triton
import triton.language as tl

from .double_double import constant, divide, quick_two_sum
from .exponential import bounded


@triton.jit
def root(x):
    """sqrt(x) of fp32 numbers x > 0, widened."""
    near = tl.sqrt_rn(x.to(tl.float32)).to(tl.float64)
    near = near + tl.fma(near * -1.0, near, x) / (near * 2.0)
    return quick_two_sum(near, tl.fma(near * -1.0, near, x) / (near * 2.0))


@triton.jit
def sqrt(x, table, words):
    inside = (x > 0.0) & (x < float("inf"))
    h, l = root(tl.where(inside, x, 1.0))
    h = tl.where(inside, h, tl.where(x < 0.0, float("nan"), tl.where(x == 0.0, x, 2.0**200)))
    return bounded(h, tl.where(inside, l, 0.0))


@triton.jit
def rsqrt(x, table, words):
    inside = (x > 0.0) & (x < float("inf"))
    h, l = root(tl.where(inside, x, 1.0))
    h, l = divide(h * 0.0 + constant(1.0), h * 0.0, h, l)
    h = tl.where(inside, h, tl.where(x < 0.0, float("nan"), tl.where(x == 0.0, constant(1.0) / x, 0.0)))
    h = tl.where(x == 0.0, tl.where(h > 0.0, 2.0**200, -(2.0**200)), h)
    return bounded(h, tl.where(inside, l, 0.0))


@triton.jit
def reciprocal(x, table, words):
    inside = (tl.abs(x) > 0.0) & (tl.abs(x) < float("inf"))
    v = tl.where(inside, x, 1.0)
    h = constant(1.0) / v
    l = tl.fma(h * -1.0, v, constant(1.0)) / v
    end = constant(1.0) / x
    end = tl.where(end > 2.0**200, 2.0**200, tl.where(end < -(2.0**200), -(2.0**200), end))
    return bounded(tl.where(inside, h, end), tl.where(inside, l, 0.0))
