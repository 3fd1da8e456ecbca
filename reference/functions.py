"""exp_f32, ln_f32 and tanh_f32, SPEC.md, "Functions"."""

import mpmath
import numpy as np

from reference import unary
from reference.fma import fma32

LOG2_E = np.float32(float.fromhex("0x1.715476p+0"))
MAGIC = np.float32(float.fromhex("0x1.8p+23"))
LN2_HIGH = np.float32(float.fromhex("0x1.62e430p-1"))
LN2_LOW = np.float32(float.fromhex("-0x1.05c610p-29"))
COEFFICIENTS = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666659713e-1, 5.0000001201e-1)
)
LEAST = np.float32(-88)


def exp_f32(x: np.ndarray) -> np.ndarray:
    """e^x for x <= 0 by the published sequence: n = nearest integer to x / ln 2, a polynomial in x - n * ln 2, 2^n."""
    x = np.asarray(x, np.float32)
    inside = np.where(x >= LEAST, x, np.float32(0))
    t = fma32(inside, LOG2_E, MAGIC)
    n = t - MAGIC
    r = fma32(n, -LN2_HIGH, inside)
    r = fma32(n, -LN2_LOW, r)
    z = r * r
    p = np.asarray(COEFFICIENTS[0])
    for c in COEFFICIENTS[1:]:
        p = fma32(p, r, c)
    y = fma32(p, z, r)
    y = y + np.float32(1)
    power = np.ldexp(np.float32(1), np.maximum(n, -126).astype(np.int32))
    with np.errstate(under="ignore"):
        result = y * power
    result = np.where((n < -126) | (result < np.float32(2.0**-126)) | (x < LEAST), np.float32(0), result)
    return np.where(np.isnan(x), np.float32(np.nan), result)


def ln_f32(x: np.ndarray) -> np.ndarray:
    """RN32(ln x): ln(+-0) = -inf, NaN below 0, ln(+inf) = +inf."""
    x = np.asarray(x, np.float32)
    return np.array([_ln(float(value)) for value in x.reshape(-1)], np.float32).reshape(x.shape)


def _ln(value: float) -> float:
    if value == 0:
        return -np.inf
    if not value > 0:
        return np.nan
    if value in (1.0, np.inf):
        return 0.0 if value == 1 else np.inf
    # ln of a rational other than 1 is transcendental, so it is never half-way between two fp32 numbers.
    with mpmath.workprec(160):
        return rounded32(mpmath.log(mpmath.mpf(value)))


def tanh_f32(x: np.ndarray) -> np.ndarray:
    """RN32(tanh x): from binary64, and by mpmath where a relative error of 2^-40 there could decide."""
    x = np.asarray(x, np.float32)
    near = np.tanh(x.astype(np.float64))
    low, high = ((near * (1 + sign * 2.0**-40)).astype(np.float32) for sign in (-1, 1))
    return np.where(low == high, low, unary.forward("tanh", np.where(low == high, np.float32(0), x)))


def rounded32(exact: mpmath.mpf) -> float:
    """RN32 of an mpmath number in the normal range of fp32."""
    with mpmath.workprec(24):
        return float(+exact)
