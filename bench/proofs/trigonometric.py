"""sin and cos of every fp32 number: 192 digits of 2 / pi times x as integers (Payne and Hanek, 1983), then Taylor."""

import mpmath
import triton
import triton.language as tl

from .double_double import add_one, constant, polynomial, quick_two_sum, times, times_one
from .exponential import bounded, nearest_integer
from .tables import CIRCLE_START, CIRCLE_TERMS, LEADING_ZEROS, split

MASK = tl.constexpr(0xFFFFFFFF)
with mpmath.workprec(200):
    HALF_PI_HIGH, HALF_PI_LOW = (tl.constexpr(part) for part in split(mpmath.pi / 2))


@triton.jit
def window(words, place, shift, I: tl.constexpr):
    """32 digits of 2 / pi."""
    first, second = tl.load(words + place + I), tl.load(words + place + I + 1)
    return ((first << shift) | (second >> (32 - shift))) & MASK


@triton.jit
def word_of_product(words, place, shift, m, carry, I: tl.constexpr):
    t = window(words, place, shift, I) * m + carry
    return t & MASK, t >> 32


@triton.jit
def quarter_turns(size, words):
    """q and r with size = q * pi/2 + r modulo 2 pi, |r| <= pi/4, size >= 1/2 an fp32 number."""
    bits = size.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
    m = (bits & 0x7FFFFF) | 0x800000
    e = (bits >> 23) - 150
    # size = m * 2^e. Digits of 2 / pi of weight above 2^(1 - e) only add multiples of 4: the window begins there.
    begin = e - 2 + LEADING_ZEROS
    place, shift = begin >> 5, begin & 31
    p5, carry = word_of_product(words, place, shift, m, m * 0, 5)
    p4, carry = word_of_product(words, place, shift, m, carry, 4)
    p3, carry = word_of_product(words, place, shift, m, carry, 3)
    p2, carry = word_of_product(words, place, shift, m, carry, 2)
    p1, carry = word_of_product(words, place, shift, m, carry, 1)
    p0, carry = word_of_product(words, place, shift, m, carry, 0)
    q = (p0 + (1 << 29)) >> 30
    p0 = p0 - (q << 30)
    flip = p0 >> 63
    h = (p0 ^ flip).to(tl.float64) * 2.0**-30
    h, l = add_one(h, h * 0.0, ((p1 ^ flip) & MASK).to(tl.float64) * 2.0**-62)
    h, l = add_one(h, l, ((p2 ^ flip) & MASK).to(tl.float64) * 2.0**-94)
    h, l = add_one(h, l, ((p3 ^ flip) & MASK).to(tl.float64) * constant(2.0**-126))
    h, l = add_one(h, l, ((p4 ^ flip) & MASK).to(tl.float64) * constant(2.0**-158))
    h, l = add_one(h, l, ((p5 ^ flip) & MASK).to(tl.float64) * constant(2.0**-190))
    h, l = times(h, l, constant(HALF_PI_HIGH), constant(HALF_PI_LOW))
    sign = tl.where(flip == 0, 1.0, -1.0)
    return q, h * sign, l * sign


@triton.jit
def turned(q, h, l, table):
    """sin(q * pi/2 + h + l), |h| <= pi/4."""
    zh, zl = times(h, l, h, l)
    cosine = (q & 1) == 1
    sh, sl = polynomial(zh, zl, table + 2 * (CIRCLE_START + tl.where(cosine, CIRCLE_TERMS, 0)), CIRCLE_TERMS)
    oh, ol = times(sh, sl, h, l)
    h, l = tl.where(cosine, sh, oh), tl.where(cosine, sl, ol)
    sign = tl.where((q & 2) == 0, 1.0, -1.0)
    return quick_two_sum(h * sign, l * sign)


@triton.jit
def circle(size, table, words, TURN: tl.constexpr):
    """sin(size + TURN * pi/2), 0 <= size."""
    large = size >= 0.5
    q, h, l = quarter_turns(tl.where(large, size, 1.0), words)
    return turned(tl.where(large, q, 0) + TURN, tl.where(large, h, size), tl.where(large, l, 0.0), table)


@triton.jit
def half_circles(x, table, TURN: tl.constexpr):
    """sin(pi * x + TURN * pi/2), 0 <= x < 2; zeros are +0."""
    q = nearest_integer(x * 2.0)
    f = x - q * 0.5
    h, l = times_one(f * 0.0 + constant(HALF_PI_HIGH), f * 0.0 + constant(HALF_PI_LOW), f * 2.0)
    h, l = turned(q.to(tl.int64) + TURN, h, l, table)
    return bounded(tl.where(h == 0.0, 0.0, h), l)


@triton.jit
def sin(x, table, words):
    inside = tl.abs(x) < float("inf")
    h, l = circle(tl.where(inside, tl.abs(x), 1.0), table, words, 0)
    sign = tl.where(x < 0.0, -1.0, 1.0)
    return bounded(tl.where(inside, tl.where(x == 0.0, x, h * sign), float("nan")), l * sign)


@triton.jit
def cos(x, table, words):
    inside = tl.abs(x) < float("inf")
    h, l = circle(tl.where(inside, tl.abs(x), 1.0), table, words, 1)
    return bounded(tl.where(inside, h, float("nan")), l)


@triton.jit
def sinpi(x, table, words):
    return half_circles(x, table, 0)


@triton.jit
def cospi(x, table, words):
    return half_circles(x, table, 1)
