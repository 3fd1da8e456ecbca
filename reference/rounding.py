"""RN32 of a real function by Ziv's strategy: more and more digits until both ends of the interval round alike.

A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit", 1991.
"""

from collections.abc import Callable

import mpmath

# Digits of the attempts, in bits. What a function computes with `prec` bits is trusted to be within 2^(GUARD - prec).
PRECISIONS = (80, 160, 400, 1000, 4000)
GUARD = 12
INFINITY = 0x7F800000


def rounded(function: Callable[[], mpmath.mpf]) -> int:
    """The fp32 bits of RN32(v), v real, not 0 and not half-way between two fp32 numbers.

    function: computes v to the working precision of mpmath.
    """
    for precision in PRECISIONS:
        with mpmath.workprec(precision):
            value = function()
        sign, mantissa, exponent, _ = value._mpf_
        mantissa, exponent = int(mantissa) << precision, exponent - precision
        error = (mantissa >> (precision - GUARD)) + 1
        below, above = magnitude(mantissa - error, exponent), magnitude(mantissa + error, exponent)
        if below == above:
            return sign << 31 | below
    raise ArithmeticError(f"{value} cannot be told from a number half-way between two fp32 numbers")


def magnitude(mantissa: int, exponent: int) -> int:
    """The fp32 bits of RN32(mantissa * 2^exponent), mantissa > 0: ties to even, subnormals, overflow to infinity."""
    top = mantissa.bit_length() + exponent - 1
    if top < -150:
        return 0
    if top > 127:
        return INFINITY
    binade = max(top, -126)
    shift = binade - 23 - exponent
    if shift <= 0:
        units = mantissa << -shift
    else:
        units, rest = mantissa >> shift, mantissa & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        units += rest > half or (rest == half and units & 1)
    # The leading bit of a normal number adds one to the exponent field, as does a carry out of the fraction.
    return ((binade + 126) << 23) + units
