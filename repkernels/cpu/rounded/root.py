"""sqrt, rsqrt, reciprocal, correctly rounded, as in kernels/rounded/root.py (see exponential.py)."""

import numpy as np
from numba import njit

from repkernels.coefficients import root as c
from repkernels.cpu.functions import bitcast, fma

F32, F64, I32 = np.float32, np.float64, np.int32

SEED = I32(c.SEED)
SMALLEST_NORMAL, UP, BACK = F32(2.0**-126), F32(2.0**24), F32(2.0**12)


@njit
def sqrt(x):
    """RN32(sqrt(x)); zeros stay, NaN below."""
    return np.sqrt(x)


@njit
def reciprocal(x):
    """RN32(1 / x)."""
    return F32(1) / x if x != F32(0) else bitcast(I32(bitcast(x) | 0x7F800000))


@njit
def wide_rsqrt(x):
    """x: fp32, normal and positive."""
    r = bitcast(I32(SEED - (bitcast(x) >> 1)))
    minus_half = x * F32(-0.5)
    r = r * fma(minus_half * r, r, F32(1.5))
    r = r * fma(minus_half * r, r, F32(1.5))
    r = r * fma(minus_half * r, r, F32(1.5))
    v = F64(r)
    e = fma((F64(x) * -1.0) * v, v, 1.0)
    return fma(v * e, fma(e, 0.375, 0.5), v)


@njit
def rsqrt(x):
    """RN32(1 / sqrt(x)); an infinity of its sign at a zero, NaN below."""
    small = x < SMALLEST_NORMAL
    scaled = x * UP if small else x
    y = F32(wide_rsqrt(scaled))
    y = y * BACK if small else y
    y = y if x > F32(0) else F32(np.nan)
    y = F32(0) if x == F32(np.inf) else y
    return bitcast(I32(bitcast(x) | 0x7F800000)) if x == F32(0) else y
