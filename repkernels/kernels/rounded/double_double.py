"""Numbers as sums high + low of two binary64 numbers, as in cpu/rounded/double_double.py: about 104 bits.

T. J. Dekker, "A floating-point technique for extending the available precision", 1971.
"""

import triton
import triton.language as tl

from repkernels.kernels.rounded.arithmetic import constant


@triton.jit
def renormalized(a, b):
    """a + b = high + low exactly, where |a| >= |b| or a = 0."""
    high = a + b
    return high, b - (high - a)


@triton.jit
def times(ah, al, bh, bl):
    """The product, |low| within some ulp of high."""
    high = ah * bh
    low = tl.fma(ah, bh, high * constant(-1.0))
    return high, tl.fma(al, bh, tl.fma(ah, bl, low))


@triton.jit
def series(xh, xl, TAIL: tl.constexpr, HEAD: tl.constexpr):
    """Horner's rule; TAIL: binary64 coefficients, highest degree first; HEAD: those that follow, as (high, low)."""
    high = tl.fma(xh, constant(TAIL[0]), constant(TAIL[1]))
    for i in tl.static_range(2, len(TAIL)):
        high = tl.fma(high, xh, constant(TAIL[i]))
    low = xh * constant(0.0)
    for i in tl.static_range(len(HEAD)):
        high, low = times(high, low, xh, xl)
        total = constant(HEAD[i][0]) + high
        low = (high - (total - constant(HEAD[i][0]))) + (low + constant(HEAD[i][1]))
        high = total
    return high, low
