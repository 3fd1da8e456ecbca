"""erf and gelu: the series about 0, and e^(z^2) erfc(z) by its Taylor series about 66 centres."""

import triton
import triton.language as tl

from .double_double import add_one, constant, polynomial, times, times_one, two_product
from .exponential import ERROR, SMALL, SMALL_ERROR, bounded, e_to, nearest_integer
from .tables import ERF_START, ERF_TAIL_START, ERF_TERMS, GELU_TAIL_START, TAIL_TERMS


@triton.jit
def scaled_tail(w, table, START: tl.constexpr):
    """e^(z^2) erfc(z) of z = w or w / sqrt(2), by START; 0 <= w <= 16."""
    n = nearest_integer(w * 4.0)
    t = w - n * 0.25
    return polynomial(t, t * 0.0, table + 2 * (START + TAIL_TERMS * n.to(tl.int32)), TAIL_TERMS)


@triton.jit
def erf(x, table, words):
    size = tl.abs(x)
    near = size < 0.5
    v = tl.where(near, size, 0.25)
    zh, zl = two_product(v, v)
    sh, sl = polynomial(zh, zl, table + 2 * ERF_START, ERF_TERMS)
    sh, sl = times_one(sh, sl, v)
    w = tl.where(size > 12.0, 12.0, size)
    eh, el = e_to(w * w * -1.0, w * 0.0, table)
    h, l = scaled_tail(w, table, ERF_TAIL_START)
    h, l = times(h, l, eh, el)
    h, l = add_one(h * -1.0, l * -1.0, constant(1.0))
    sign = tl.where(x < 0.0, -1.0, 1.0)
    h, l = tl.where(near, sh, h) * sign, tl.where(near, sl, l) * sign
    return bounded(tl.where(x == 0.0, x, h), l)


@triton.jit
def gelu(x, table, words):
    """x * erfc(-x / sqrt(2)) / 2: with T = erfc(|x| / sqrt(2)) / 2, x * T for x < 0 and x - x * T for x > 0."""
    size = tl.abs(x)
    w = tl.where(size > 16.0, 16.0, size)
    eh, el = e_to(w * w * -0.5, w * 0.0, table)
    h, l = scaled_tail(w, table, GELU_TAIL_START)
    h, l = times(h, l, eh, el)
    h, l = times_one(h, l, w * -0.5)
    ph, pl = add_one(h, l, tl.where(x > 2.0**130, 2.0**200, tl.where(x > 0.0, x, 0.0)))
    h, l = tl.where(x == 0.0, x, ph), pl
    return h, l, tl.where(size < SMALL, tl.abs(l) * SMALL_ERROR, tl.abs(h) * ERROR)
