"""reference/rounding.py, unary.py and power.py: rounding against NumPy's and fractions, known hard inputs, ends."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from reference import power, unary
from reference.rounding import magnitude, rounded


def bits(x):
    return int(np.float32(x).view(np.uint32))


def test_rounding_is_numpys():
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(3000) * 2.0 ** rng.integers(-160, 130, 3000)
    with np.errstate(over="ignore"):
        single = wide.astype(np.float32)
    for x, y in zip(np.abs(wide), np.abs(single), strict=True):
        numerator, denominator = float(x).as_integer_ratio()
        assert magnitude(numerator, 1 - denominator.bit_length()) == bits(y)


@pytest.mark.parametrize(
    "mantissa, exponent, expected",
    [
        (1, -150, 0), (3, -151, 1), (3, -150, 2), (1, -149, 1), (2**24 - 1, -150, bits(2.0**-126)),
        (2**25 - 1, 103, 0x7F800000), (2**26 - 3, 102, 0x7F7FFFFF), (2**24 + 1, 0, bits(2.0**24)),
        (1, 10**9, 0x7F800000), (2**24 + 3, 0, bits(2.0**24 + 4)), (1, -(10**9), 0),
        ((2**24 + 1 << 200) + 1, -200, bits(2.0**24 + 2)),
    ],
)  # fmt: skip
def test_rounding_at_ties_and_ends(mantissa, exponent, expected):
    assert magnitude(mantissa, exponent) == expected


def test_a_tie_is_never_decided():
    with pytest.raises(ArithmeticError, match="half-way"):
        rounded(lambda: mpmath.mpf(2**24 + 1))


# Inputs at which a correctly rounded binary64 result, rounded once more, is wrong.
@pytest.mark.parametrize(
    "name, x, y",
    [
        ("log", 0x3C413D3A, 0xC08E158F), ("log", 0x41178FEB, 0x400FE5E7), ("exp2", 0x3B429D37, 0x3F804385),
        ("exp2", 0xBCF3A937, 0x3F7AC6B1), ("silu", 0x00000001, 1), ("silu", 0x80000001, 0x80000000),
        ("gelu", 0x80000003, 0x80000001), ("gelu", 0x00000001, 1), ("exp2", 0xC3160000, 0), ("exp2", 0xC315FFFF, 1),
        ("sin", 0x7F7FFFFF, 0xBF0599B3), ("log1p", 0xBF800000, 0xFF800000), ("selu", 0xFF800000, 0xBFE10966),
    ],
)  # fmt: skip
def test_known_results(name, x, y):
    assert f"{unary.value(name, x):08x}" == f"{y:08x}"


@pytest.mark.parametrize("name", unary.FUNCTIONS)
def test_nan_infinities_and_zeros_are_torchs(name):
    """But that gelu, silu and mish have their limit, -0, at minus infinity, and keep every zero."""
    special = torch.tensor([np.nan, np.inf, -np.inf, 0.0, -0.0])
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name.removesuffix("_tanh"), None)
    options = {"approximate": "tanh"} if name == "gelu_tanh" else {}
    wanted = function(special, **options).numpy().copy()
    if name in ("gelu", "gelu_tanh", "silu", "mish"):
        wanted[2] = wanted[4] = -0.0
    found = unary.forward(name, special.numpy())
    same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), (found, wanted)


def test_exact_powers():
    rng = np.random.default_rng(1)
    for _ in range(2000):
        x, y = float(rng.integers(-300, 300)) / 2.0 ** int(rng.integers(-20, 20)), int(rng.integers(-4, 5))
        if x and y:
            exact = Fraction(np.float32(x).item()) ** y
            found = power.value(np.float32(x).item(), float(y))
            with mpmath.workprec(300):
                near = mpmath.mpf(exact.numerator) / exact.denominator
            with mpmath.workprec(24):
                assert np.uint32(found).view(np.float32) == float(+near) or not 2.0**-126 < abs(near) < 2.0**127


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (4097, 2, 4097.0**2 - 1), (4099, 2, 4099.0**2 - 1), (4101, 2, 4101.0**2 - 1), (81, 0.75, 27),
        (2, -149, 2.0**-149), (2, -150, 0), (0.25, 75, 0), (-8, 3, -512), (9, -0.5, 1 / 3), (-1, np.inf, 1),
        (-0.0, 3, -0.0), (-0.0, -3, -np.inf), (-0.0, 0.5, 0.0), (np.nan, 0, 1), (1, np.nan, 1), (0.5, np.inf, 0),
        (-2, np.inf, np.inf), (-np.inf, 3, -np.inf), (-np.inf, -3, -0.0), (-np.inf, 0.5, np.inf),
        (3e38, 1.5, np.inf), (-3e38, 3, -np.inf), (1e-30, 3, 0), (-1e-30, 3, -0.0),
    ],
)  # fmt: skip
def test_powers_by_hand(x, y, expected):
    assert power.value(float(np.float32(x)), y) == bits(expected)


def test_powers_that_are_no_number():
    assert power.value(-2.0, 0.5) == power.value(np.nan, 1.0) == power.value(2.0, np.nan) == 0x7FC00000
