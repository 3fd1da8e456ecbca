"""pow(x, y) of fp32 numbers, SPEC.md, "pow": RN32(x^y) by mpmath, the exact powers by integers."""

import math

import mpmath
import numpy as np

from reference import unary
from reference.rounding import INFINITY, magnitude, rounded

NAN, ONE = 0x7FC00000, 0x3F800000


def forward(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """RN32(x^y), with broadcasting."""
    x, y = np.broadcast_arrays(np.asarray(x, np.float32), np.asarray(y, np.float32))
    results = np.array([value(float(a), float(b)) for a, b in zip(x.flat, y.flat, strict=True)], np.uint32)
    return results.view(np.float32).reshape(x.shape)


def value(x: float, y: float) -> int:
    """The bits of RN32(x^y), with the special values of IEEE 754's pow."""
    if y == 0 or x == 1:
        return ONE
    if x != x or y != y:
        return NAN
    whole = math.isinf(y) or y == math.floor(y)
    odd = math.isfinite(y) and whole and int(y) % 2 == 1
    sign = 0x80000000 if odd and math.copysign(1, x) < 0 else 0
    size = abs(x)
    if x == 0 or math.isinf(x):
        return sign | (INFINITY if (x == 0) == (y < 0) else 0)
    if math.isinf(y):
        return ONE if size == 1 else INFINITY if (size > 1) == (y > 0) else 0
    if x < 0 and not whole:
        return NAN
    if (exact := _exact(size, y)) is not None:
        return sign | magnitude(*exact)
    return sign | rounded(lambda: mpmath.exp(mpmath.mpf(y) * mpmath.log(mpmath.mpf(size))))


def _exact(x: float, y: float) -> tuple[int, int] | None:
    """x^y = mantissa * 2^exponent with a mantissa of at most 26 bits, if it is such a number.

    Only those can be fp32 numbers or half-way between two. x = m * 2^e with m odd, y = n / 2^k with n odd or k = 0.
    x^(1/2^k) is rational iff m and 2^e are 2^k-th powers; a negative power of m > 1 is no multiple of a power of two.
    """
    numerator, denominator = x.as_integer_ratio()
    e = (numerator & -numerator).bit_length() - denominator.bit_length()
    m = numerator // (numerator & -numerator)
    n, root = y.as_integer_ratio()
    while root > 1:
        if e % 2 or math.isqrt(m) ** 2 != m:
            return None
        m, e, root = math.isqrt(m), e // 2, root // 2
    if m == 1:
        return 1, max(-10000, min(10000, e * n))
    return (m**n, e * n) if 0 < n and n * (m.bit_length() - 1) <= 26 else None


def gradients(g: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of x and of y, in fp32, before any SUM: SPEC.md, "Elementwise operations"."""
    one, zero = np.float32(1), np.float32(0)
    of_x = g * (y * forward(x, y - one))
    of_y = g * (forward(x, y) * unary.forward("log", x))
    return np.where(y == 0, zero, of_x), np.where((x == 0) & (y >= 0), zero, of_y)
