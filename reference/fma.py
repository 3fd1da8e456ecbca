"""Exact fused multiply-add: RN(a * b + c), one rounding."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike


def fma32(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> np.ndarray:
    """RN32(a * b + c) elementwise, with broadcasting.

    The product of two fp32 numbers is exact in binary64. Its sum with c is rounded to odd (Boldo and Melquiond,
    "Emulation of a FMA and correctly rounded sums", 2008): the error of the binary64 sum is found by Knuth's two-sum,
    and where it is not zero the last bit is made odd. The final rounding to fp32 then cannot be misled by the first.
    """
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
        addend = np.asarray(c, np.float32).astype(np.float64)
        total = product + addend
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        pattern = np.atleast_1d(total).view(np.int64).reshape(np.shape(total))
        inexact = np.isfinite(total) & (error != 0) & (pattern & 1 == 0)
        step = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.atleast_1d(np.where(inexact, pattern + step, pattern)).view(np.float64).reshape(np.shape(total))
        return odd.astype(np.float32)


def fma64(a: float, b: float, c: float) -> float:
    """RN64(a * b + c) of three Python floats, by exact rational arithmetic."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        if math.isfinite(a) and math.isfinite(b):
            return c
        return _product_sign(a, b) + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        # An exact zero is -0 only if both addends are -0.
        negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
        both_zero = (a == 0 or b == 0) and c == 0
        return -0.0 if negative and both_zero else 0.0
    return rounded64(exact)


def rounded64(exact: Fraction) -> float:
    """RN64 of a rational number other than 0: Python divides integers with one correct rounding."""
    try:
        near = exact.numerator / exact.denominator
    except OverflowError:
        near = math.inf
    return math.copysign(near, 1 if exact > 0 else -1)


def _product_sign(a: float, b: float) -> float:
    """a * b where one of them is not finite: NaN or an infinity."""
    if math.isnan(a) or math.isnan(b) or a == 0 or b == 0:
        return math.nan
    return math.copysign(math.inf, math.copysign(1, a) * math.copysign(1, b))
