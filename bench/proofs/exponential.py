"""e^x and what is made of it: exp, exp2, expm1, sigmoid, tanh, silu, mish, elu, selu and gelu's tanh form.

x is fp32 widened, never NaN; results are double-double and a bound of their error. HUGE and TINY stand for numbers that
round to infinity and to zero.
"""

import mpmath
import triton
import triton.language as tl

from .double_double import (
    add,
    add_one,
    constant,
    divide,
    polynomial,
    power_of_two,
    quick_two_sum,
    times,
    times_one,
    two_product,
    two_sum,
)
from .tables import EXP_START, EXP_TERMS, split, three_parts

# The Taylor series of e^r - 1, |r| <= ln 2 / 2.
ERROR = tl.constexpr(2.0**-90)
# Where the result is c * x + d * x^2, c * x exact: the error is relative to the second term.
SMALL = tl.constexpr(2.0**-60)
SMALL_ERROR = tl.constexpr(2.0**-20)

with mpmath.workprec(200):
    LN2_A, LN2_B, LN2_C = (tl.constexpr(part) for part in three_parts(mpmath.ln(2)))
    LN2_HIGH, LN2_LOW = (tl.constexpr(part) for part in split(mpmath.ln(2)))
    LOG2_E = tl.constexpr(float(1 / mpmath.ln(2)))
    # gelu's tanh form is x * sigmoid(A * x + B * x^3).
    _A = mpmath.sqrt(8 / mpmath.pi)
    A_HIGH, A_LOW = (tl.constexpr(part) for part in split(_A))
    B_HIGH, B_LOW = (tl.constexpr(part) for part in split(_A * 44715 / 10**6))
# selu's constants are the binary64 numbers that torch has.
SCALE = tl.constexpr(1.0507009873554804934193349852946)
ALPHA = tl.constexpr(1.6732632423543772848170429916717)
TO_INTEGER = tl.constexpr(1.5 * 2.0**52)


@triton.jit
def nearest_integer(x):
    """x rounded to an integer, |x| < 2^51."""
    return (x + constant(TO_INTEGER)) - constant(TO_INTEGER)


@triton.jit
def between(x, low, high):
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit
def bounded(h, l):
    """With the bound of the error that holds unless a function says otherwise."""
    return h, l, tl.abs(h) * ERROR


@triton.jit
def bounded_product(x, h, l):
    """x * (h + l), where h + l = 1/2 + c * x + ... near 0."""
    h, l = times_one(h, l, x)
    return h, l, tl.where(tl.abs(x) < SMALL, tl.abs(l) * SMALL_ERROR, tl.abs(h) * ERROR)


@triton.jit
def series(rh, rl, table):
    """e^r - 1, |r| <= 0.347."""
    sh, sl = polynomial(rh, rl, table + 2 * EXP_START, EXP_TERMS)
    return times(sh, sl, rh, rl)


@triton.jit
def reduced(xh, xl):
    """n and r with x = n ln 2 + r, |r| <= ln 2 / 2, |x| <= 300: r's absolute error is below 2^-97."""
    n = nearest_integer(xh * constant(LOG2_E))
    minus = n * -1.0
    a, b = two_sum(xh, minus * constant(LN2_A))
    c, d = two_sum(a, minus * constant(LN2_B))
    rh, rl = quick_two_sum(c, (b + d) + tl.fma(minus, constant(LN2_C), xl))
    return n, rh, rl


@triton.jit
def e_to(xh, xl, table):
    """e^x, |x| <= 300."""
    n, rh, rl = reduced(xh, xl)
    sh, sl = series(rh, rl, table)
    sh, sl = add_one(sh, sl, constant(1.0))
    scale = power_of_two(n)
    return sh * scale, sl * scale


@triton.jit
def e_to_minus_one(xh, xl, table):
    """e^x - 1, |x| <= 300, of small relative error also near 0."""
    n, rh, rl = reduced(xh, xl)
    sh, sl = series(rh, rl, table)
    scale = power_of_two(n)
    oh, ol = two_sum(scale, constant(-1.0))
    h, l = add(sh * scale, sl * scale, oh, ol)
    return tl.where(n == 0.0, sh, h), tl.where(n == 0.0, sl, l)


@triton.jit
def logistic(xh, xl, table):
    """1 / (1 + e^-x)."""
    h, l = e_to(xh * -1.0, xl * -1.0, table)
    h, l = add_one(h, l, constant(1.0))
    return divide(h * 0.0 + 1.0, h * 0.0, h, l)


@triton.jit
def exp(x, table, words):
    x = between(x, -150.0, 150.0)
    h, l = e_to(x, x * 0.0, table)
    return bounded(h, l)


@triton.jit
def exp2(x, table, words):
    x = between(x, -200.0, 200.0)
    n = nearest_integer(x)
    rh, rl = two_product(x - n, constant(LN2_HIGH))
    rh, rl = quick_two_sum(rh, tl.fma(x - n, constant(LN2_LOW), rl))
    h, l = series(rh, rl, table)
    h, l = add_one(h, l, constant(1.0))
    scale = power_of_two(n)
    # 2^-150 is exact, and half-way between two fp32 numbers.
    return h * scale, l * scale, tl.where(x == n, 0.0, h * scale * ERROR)


@triton.jit
def expm1(x, table, words):
    v = between(x, -150.0, 150.0)
    h, l = e_to_minus_one(v, v * 0.0, table)
    return bounded(tl.where(x == 0.0, x, h), l)


@triton.jit
def elu(x, table, words):
    h, l, doubt = expm1(x, table, words)
    return tl.where(x > 0.0, x, h), tl.where(x > 0.0, 0.0, l), tl.where(x > 0.0, 0.0, doubt)


@triton.jit
def selu(x, table, words):
    v = between(x, -150.0, 0.0)
    h, l = e_to_minus_one(v, v * 0.0, table)
    ch, cl = two_product(constant(SCALE), constant(ALPHA))
    h, l = times(h, l, ch, cl)
    ph, pl = two_product(between(x, -150.0, 2.0**200), constant(SCALE))
    h, l = tl.where(x > 0.0, ph, h), tl.where(x > 0.0, pl, l)
    return bounded(tl.where(x == 0.0, x, h), l)


@triton.jit
def sigmoid(x, table, words):
    v = between(x, -150.0, 150.0)
    h, l = logistic(v, v * 0.0, table)
    return bounded(h, l)


@triton.jit
def tanh(x, table, words):
    v = between(x, -50.0, 50.0) * 2.0
    h, l = e_to_minus_one(v, v * 0.0, table)
    bh, bl = add_one(h, l, constant(2.0))
    h, l = divide(h, l, bh, bl)
    return bounded(tl.where(x == 0.0, x, h), l)


@triton.jit
def silu(x, table, words):
    v = between(x, -150.0, 150.0)
    h, l = logistic(v, v * 0.0, table)
    h, l, doubt = bounded_product(between(x, -150.0, 2.0**200), h, l)
    return tl.where(x == 0.0, x, h), l, doubt


@triton.jit
def gelu_tanh(x, table, words):
    v = between(x, -12.0, 12.0)
    square = v * v
    ch, cl = two_product(square, v)
    ch, cl = times(ch, cl, constant(B_HIGH), constant(B_LOW))
    ah, al = two_product(v, constant(A_HIGH))
    ah, al = quick_two_sum(ah, tl.fma(v, constant(A_LOW), al))
    ah, al = add(ah, al, ch, cl)
    h, l = logistic(ah, al, table)
    h, l, doubt = bounded_product(between(x, -12.0, 2.0**200), h, l)
    return tl.where(x == 0.0, x, h), l, doubt


@triton.jit
def mish(x, table, words):
    """x * tanh(ln(1 + e^x)) = x * (E^2 + 2 E) / (E^2 + 2 E + 2), E = e^x."""
    v = between(x, -150.0, 50.0)
    h, l = e_to(v, v * 0.0, table)
    ah, al = add_one(h, l, constant(2.0))
    ah, al = times(ah, al, h, l)
    bh, bl = add_one(ah, al, constant(2.0))
    h, l = divide(ah, al, bh, bl)
    h, l = times_one(h, l, between(x, -150.0, 2.0**200))
    return bounded(tl.where(x == 0.0, x, h), l)
