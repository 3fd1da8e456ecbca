"""reference/fma.py against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reference.fma import fma32, fma64

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


def nearest(exact, precision, least, largest):
    """The value of a rational rounded to nearest even: `precision` bits, multiples of 2^least at the bottom."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = math.floor(math.log2(size.numerator) - math.log2(size.denominator))
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** max(exponent - precision + 1, least)
    near = round(size / unit) * unit
    value = math.inf if near > Fraction(largest) else float(near)
    return math.copysign(value, exact.numerator / abs(exact.numerator))


@given(SINGLES, SINGLES, SINGLES)
@example(1 + 2.0**-23, 1 + 2.0**-23, -1 - 2.0**-22)
@example(2.0**-149, 0.5, 0.0)  # half of the least subnormal: a tie, to even
@example(2.0**-149, 0.5, 2.0**-149)
@example(2.0**-149, 2.0**-149, 1.0)
@example(2.0**-149, -(2.0**-149), 1 + 2.0**-23)
@example(float(np.finfo(np.float32).max), 1 + 2.0**-23, 0.0)
def test_fma32_rounds_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    wanted = nearest(exact, 24, -149, float(np.finfo(np.float32).max))
    assert float(fma32(a, b, c)) == wanted


@given(SINGLES, SINGLES)
def test_fma32_keeps_what_two_roundings_lose(a, b):
    """RN(ab - RN(ab)) is the exact error of the product, unless it is too small for fp32."""
    with np.errstate(all="ignore"):
        product = np.float32(a) * np.float32(b)
    if np.isfinite(product) and abs(product) > 2.0**-100:
        assert Fraction(float(fma32(a, b, -product))) == Fraction(a) * Fraction(b) - Fraction(float(product))


@given(DOUBLES, DOUBLES, DOUBLES)
@example(2.0**-1074, 0.5, 0.0)
@example(2.0**-1074, 0.5, 2.0**-1074)
@example(1 + 2.0**-52, 1 + 2.0**-52, -1.0)
@example(2.0**1023, 2.0, -(2.0**1023))
@example(2.0**1023, 2.0, -(2.0**1022))
def test_fma64_rounds_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert fma64(a, b, c) == nearest(exact, 53, -1074, float(np.finfo(np.float64).max))


@pytest.mark.parametrize("fma", [fma32, fma64])
@pytest.mark.parametrize(
    ("a", "b", "c", "sign"),
    [(0.0, -1.0, -0.0, -1), (0.0, 1.0, -0.0, 1), (1.0, 1.0, -1.0, 1), (-0.0, 1.0, 0.0, 1), (-1.0, 1.0, 1.0, 1)],
)
def test_signs_of_zeros(fma, a, b, c, sign):
    result = float(fma(a, b, c))
    assert result == 0
    assert math.copysign(1, result) == sign


@pytest.mark.parametrize("fma", [fma32, fma64])
def test_not_finite(fma):
    inf, nan = math.inf, math.nan
    assert np.isnan(fma(0.0, inf, 1.0))
    assert np.isnan(fma(inf, 1.0, -inf))
    assert np.isnan(fma(nan, 1.0, 1.0))
    assert np.isnan(fma(1.0, 1.0, nan))
    assert fma(inf, -1.0, 1.0) == -inf
    assert fma(1.0, 1.0, -inf) == -inf
    assert fma(1e30, 1e30, -inf) == -inf
