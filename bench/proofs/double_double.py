"""Numbers as sums high + low of two binary64 numbers, |low| <= ulp(high) / 2: about 106 bits.

T. J. Dekker, "A floating-point technique for extending the available precision", 1971; the accurate addition and the
long division are those of Hida, Li and Bailey's QD library, 2001. Errors, relative to the result: addition and
multiplication about 2^-104, division 2^-102.
"""

import triton
import triton.language as tl


@triton.jit
def constant(VALUE: tl.constexpr):
    """A binary64 scalar: Triton 3.6 rounds a bare constant to fp32."""
    return tl.full([], VALUE, tl.float64)


@triton.jit
def two_sum(a, b):
    """a + b = s + e exactly."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


@triton.jit
def quick_two_sum(a, b):
    """a + b = s + e exactly, where |a| >= |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


@triton.jit
def two_product(a, b):
    """a * b = p + e exactly."""
    p = a * b
    return p, tl.fma(a, b, p * -1.0)


@triton.jit
def add(ah, al, bh, bl):
    s, e = two_sum(ah, bh)
    t, f = two_sum(al, bl)
    s, e = quick_two_sum(s, e + t)
    return quick_two_sum(s, e + f)


@triton.jit
def add_one(ah, al, b):
    """A double-double and a binary64 number."""
    s, e = two_sum(ah, b)
    return quick_two_sum(s, e + al)


@triton.jit
def times(ah, al, bh, bl):
    p, e = two_product(ah, bh)
    return quick_two_sum(p, e + tl.fma(ah, bl, al * bh))


@triton.jit
def times_one(ah, al, b):
    p, e = two_product(ah, b)
    return quick_two_sum(p, tl.fma(al, b, e))


@triton.jit
def divide(ah, al, bh, bl):
    q1 = ah / bh
    ph, pl = times_one(bh, bl, q1 * -1.0)
    rh, rl = add(ah, al, ph, pl)
    q2 = rh / bh
    ph, pl = times_one(bh, bl, q2 * -1.0)
    rh, rl = add(rh, rl, ph, pl)
    q1, q2 = quick_two_sum(q1, q2)
    return add_one(q1, q2, rh / bh)


@triton.jit
def power_of_two(n):
    """2^n of integral n in [-1022, 1023], int64 or binary64."""
    return ((n.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def polynomial(xh, xl, table, COUNT: tl.constexpr):
    """sum of c_k * x^k by Horner's rule, k < COUNT. table: pointer, or block of pointers, to c_0 high, c_0 low, ..."""
    sh = xh * 0.0 + tl.load(table + 2 * (COUNT - 1))
    sl = xh * 0.0 + tl.load(table + 2 * (COUNT - 1) + 1)
    for i in range(1, COUNT):
        k = 2 * (COUNT - 1 - i)
        sh, sl = times(sh, sl, xh, xl)
        sh, sl = add(sh, sl, xh * 0.0 + tl.load(table + k), xh * 0.0 + tl.load(table + k + 1))
    return sh, sl
