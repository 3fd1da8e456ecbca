"""Numbers as sums high + low of two binary64 numbers, as in kernels/rounded/double_double.py: about 104 bits.

T. J. Dekker, "A floating-point technique for extending the available precision", 1971.
"""

from numba import njit

from repkernels.cpu.functions import fma


@njit
def renormalized(a, b):
    """a + b = high + low exactly, where |a| >= |b| or a = 0."""
    high = a + b
    return high, b - (high - a)


@njit
def times(ah, al, bh, bl):
    """The product, |low| within some ulp of high."""
    high = ah * bh
    low = fma(ah, bh, -high)
    return high, fma(al, bh, fma(ah, bl, low))


@njit
def series(xh, xl, tail, head):
    """Horner's rule; tail: binary64 coefficients, highest degree first; head: those that follow, as (high, low)."""
    high = fma(tail[0], xh, tail[1])
    for i in range(2, len(tail)):
        high = fma(high, xh, tail[i])
    low = 0.0
    for i in range(len(head)):
        high, low = times(high, low, xh, xl)
        total = head[i][0] + high
        low = (high - (total - head[i][0])) + (low + head[i][1])
        high = total
    return high, low
