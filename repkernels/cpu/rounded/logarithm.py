"""log, log2, log10, log1p, correctly rounded, as in kernels/rounded/logarithm.py (see exponential.py)."""

import numpy as np
from numba import njit

from repkernels.coefficients import logarithm as c
from repkernels.cpu.functions import bitcast, fma
from repkernels.cpu.rounded.arithmetic import minus_quotient, patched, polynomial

F32, F64, I64 = np.float32, np.float64, np.int64

SQRT_HALF_BITS = I64(c.SQRT_HALF_BITS)
LN2_HIGH, LN2_LOW, LOG10_2_HIGH, LOG10_2_LOW = c.LN2_HIGH, c.LN2_LOW, c.LOG10_2_HIGH, c.LOG10_2_LOW
TWO_LOG2_E_HIGH, TWO_LOG2_E_LOW = c.TWO_LOG2_E_HIGH, c.TWO_LOG2_E_LOW
TWO_LOG10_E_HIGH, TWO_LOG10_E_LOW = c.TWO_LOG10_E_HIGH, c.TWO_LOG10_E_LOW
ATANH, ATANH_LOG2, ATANH_LOG10 = c.ATANH, c.ATANH_LOG2, c.ATANH_LOG10
LOG_PATCHES, LOG10_PATCHES, LOG1P_PATCHES = c.LOG_PATCHES, c.LOG10_PATCHES, c.LOG1P_PATCHES


@njit
def split(u):
    """(m, n) with u = m * 2^n and m in [sqrt(1/2), sqrt(2)), of a normal binary64 u > 0."""
    bits = bitcast(u)
    n = (bits - SQRT_HALF_BITS) >> 52
    return bitcast(I64(bits - (n << 52))), F64(n)


@njit
def atanh_argument(minus_f):
    """s = f / (2 + f), so that ln(1 + f) = 2 atanh(s); minus_f: -f."""
    d = 2.0 - minus_f
    return minus_quotient(minus_f, d, F32(d))


@njit
def ln_of(s, n):
    """n ln 2 + 2 atanh(s)."""
    z = s * s
    y = fma(s * z, polynomial(z, ATANH), s + s)
    return fma(n, LN2_HIGH, fma(n, LN2_LOW, y))


@njit
def wide_log(x):
    m, n = split(F64(x))
    return ln_of(atanh_argument(1.0 - m), n)


@njit
def wide_log2(x):
    m, n = split(F64(x))
    s = atanh_argument(1.0 - m)
    z = s * s
    return n + fma(s, TWO_LOG2_E_HIGH, s * fma(z, polynomial(z, ATANH_LOG2), TWO_LOG2_E_LOW))


@njit
def wide_log10(x):
    m, n = split(F64(x))
    s = atanh_argument(1.0 - m)
    z = s * s
    y = fma(s, TWO_LOG10_E_HIGH, s * fma(z, polynomial(z, ATANH_LOG10), TWO_LOG10_E_LOW))
    return fma(n, LOG10_2_HIGH, fma(n, LOG10_2_LOW, y))


@njit
def wide_log1p(x):
    """+0 at both zeros."""
    m, n = split(F64(x) + 1.0)
    return ln_of(atanh_argument(F64(x) * -1.0 if n == 0.0 else 1.0 - m), n)


@njit
def _ends(x, y):
    """y, a logarithm of x, but at 0, below it, and at infinity."""
    y = y if x > F32(0) else F32(np.nan)
    y = F32(-np.inf) if x == F32(0) else y
    return x if x == F32(np.inf) else y


@njit
def log(x):
    """RN32(ln x). -inf at both zeros, NaN below."""
    return _ends(x, patched(x, F32(wide_log(x)), LOG_PATCHES))


@njit
def log2(x):
    """RN32(log2 x). -inf at both zeros, NaN below."""
    return _ends(x, F32(wide_log2(x)))


@njit
def log10(x):
    """RN32(log10 x). -inf at both zeros, NaN below."""
    return _ends(x, patched(x, F32(wide_log10(x)), LOG10_PATCHES))


@njit
def log1p(x):
    """RN32(ln(1 + x)); zeros stay. -inf at -1, NaN below."""
    y = patched(x, F32(wide_log1p(x)), LOG1P_PATCHES)
    y = y if x > F32(-1) else F32(np.nan)
    y = F32(-np.inf) if x == F32(-1) else y
    return x if (x == F32(0)) | (x == F32(np.inf)) else y
