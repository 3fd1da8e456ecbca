"""log, log2, log10, log1p and softplus: k ln 2 + 2 atanh((m - 1) / (m + 1)) by its series."""

import mpmath
import triton
import triton.language as tl

from .double_double import add, add_one, constant, divide, polynomial, power_of_two, quick_two_sum, times, two_sum
from .exponential import LN2_A, LN2_B, LN2_C, bounded, e_to
from .tables import ATANH_START, ATANH_TERMS, split

SQRT_HALF_BITS = tl.constexpr(0x3FE6A09E667F3BCD)
# 1 + f with f in this range needs no power of two: ln(1 + f) from f itself keeps all of a small f's digits.
LEAST, MOST = tl.constexpr(-0.25), tl.constexpr(0.375)

with mpmath.workprec(200):
    LOG2_E_HIGH, LOG2_E_LOW = (tl.constexpr(part) for part in split(1 / mpmath.ln(2)))
    LOG10_E_HIGH, LOG10_E_LOW = (tl.constexpr(part) for part in split(1 / mpmath.ln(10)))


@triton.jit
def binade(h):
    """k with h / 2^k in [sqrt(1/2), sqrt(2)), h > 0."""
    return (h.to(tl.int64, bitcast=True) - SQRT_HALF_BITS) >> 52


@triton.jit
def ln_quotient(ah, al, bh, bl, table):
    """2 atanh(a / b)."""
    h, l = divide(ah, al, bh, bl)
    zh, zl = times(h, l, h, l)
    ph, pl = polynomial(zh, zl, table + 2 * ATANH_START, ATANH_TERMS)
    return times(h, l, ph, pl)


@triton.jit
def add_ln2(h, l, k):
    """h + l + k ln 2."""
    k = k.to(tl.float64)
    ah, al = quick_two_sum(k * constant(LN2_A), k * constant(LN2_B))
    ah, al = add_one(ah, al, k * constant(LN2_C))
    return add(h, l, ah, al)


@triton.jit
def ln_one_plus(fh, fl, table):
    """ln(1 + f), f > -1."""
    sh, sl = two_sum(fh * 0.0 + 1.0, fh)
    sh, sl = quick_two_sum(sh, sl + fl)
    near = (fh > LEAST) & (fh < MOST)
    k = tl.where(near, 0, binade(sh))
    scale = power_of_two(k * -1)
    sh, sl = sh * scale, sl * scale
    ah, al = add_one(sh, sl, constant(-1.0))
    bh, bl = add_one(tl.where(near, fh, sh), tl.where(near, fl, sl), tl.where(near, constant(2.0), constant(1.0)))
    h, l = ln_quotient(tl.where(near, fh, ah), tl.where(near, fl, al), bh, bl, table)
    return add_ln2(h, l, k)


@triton.jit
def mantissa_ln(x, table):
    """k and ln m as double-double, x = m * 2^k > 0."""
    k = binade(x)
    m = x * power_of_two(k * -1)
    ah, al = two_sum(m, constant(-1.0))
    bh, bl = two_sum(m, constant(1.0))
    h, l = ln_quotient(ah, al, bh, bl, table)
    return k, h, l


@triton.jit
def ends(x, low, h, l):
    """h + l in the domain x > low, -HUGE at its end, NaN outside, HUGE at infinity."""
    h = tl.where(x > low, h, tl.where(x == low, -(2.0**200), float("nan")))
    h = tl.where(x == float("inf"), 2.0**200, h)
    return bounded(h, tl.where((x > low) & (x < float("inf")), l, 0.0))


@triton.jit
def inside(x, low):
    """x, or 1 where a logarithm is none."""
    return tl.where((x > low) & (x < float("inf")), x, 1.0)


@triton.jit
def log(x, table, words):
    k, h, l = mantissa_ln(inside(x, 0.0), table)
    h, l = add_ln2(h, l, k)
    return ends(x, 0.0, h, l)


@triton.jit
def log2(x, table, words):
    k, h, l = mantissa_ln(inside(x, 0.0), table)
    h, l = times(h, l, constant(LOG2_E_HIGH), constant(LOG2_E_LOW))
    h, l = add_one(h, l, k.to(tl.float64))
    return ends(x, 0.0, h, l)


@triton.jit
def log10(x, table, words):
    k, h, l = mantissa_ln(inside(x, 0.0), table)
    h, l = add_ln2(h, l, k)
    h, l = times(h, l, constant(LOG10_E_HIGH), constant(LOG10_E_LOW))
    return ends(x, 0.0, h, l)


@triton.jit
def log1p(x, table, words):
    v = inside(x, -1.0)
    h, l = ln_one_plus(v, v * 0.0, table)
    return ends(x, -1.0, tl.where(x == 0.0, x, h), l)


@triton.jit
def softplus(x, table, words):
    """ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)."""
    v = tl.where(tl.abs(x) > 150.0, -150.0, tl.abs(x) * -1.0)
    h, l = e_to(v, v * 0.0, table)
    h, l = ln_one_plus(h, l, table)
    h, l = add_one(h, l, tl.where(x > 2.0**130, 2.0**200, tl.where(x > 0.0, x, 0.0)))
    return bounded(h, l)
