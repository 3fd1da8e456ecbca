"""log, log2, log10, log1p of a block of fp32 numbers, correctly rounded, as in cpu/rounded/logarithm.py.

See exponential.py for how. With x = m * 2^n and s = (m - 1) / (m + 1), ln x = n ln 2 + 2 atanh(s).
"""

import triton
import triton.language as tl

from repkernels.coefficients import logarithm as c
from repkernels.kernels.rounded.arithmetic import constant, minus_quotient, patched, polynomial

SQRT_HALF_BITS = tl.constexpr(c.SQRT_HALF_BITS)
LN2_HIGH, LN2_LOW = tl.constexpr(c.LN2_HIGH), tl.constexpr(c.LN2_LOW)
LOG10_2_HIGH, LOG10_2_LOW = tl.constexpr(c.LOG10_2_HIGH), tl.constexpr(c.LOG10_2_LOW)
TWO_LOG2_E_HIGH, TWO_LOG2_E_LOW = tl.constexpr(c.TWO_LOG2_E_HIGH), tl.constexpr(c.TWO_LOG2_E_LOW)
TWO_LOG10_E_HIGH, TWO_LOG10_E_LOW = tl.constexpr(c.TWO_LOG10_E_HIGH), tl.constexpr(c.TWO_LOG10_E_LOW)
ATANH = tl.constexpr(c.ATANH)
ATANH_LOG2 = tl.constexpr(c.ATANH_LOG2)
ATANH_LOG10 = tl.constexpr(c.ATANH_LOG10)
LOG_PATCHES = tl.constexpr(c.LOG_PATCHES)
LOG10_PATCHES = tl.constexpr(c.LOG10_PATCHES)
LOG1P_PATCHES = tl.constexpr(c.LOG1P_PATCHES)


@triton.jit
def split(u):
    """(m, n) with u = m * 2^n and m in [sqrt(1/2), sqrt(2)), of normal binary64 u > 0."""
    bits = u.to(tl.int64, bitcast=True)
    n = (bits - SQRT_HALF_BITS) >> 52
    return (bits - (n << 52)).to(tl.float64, bitcast=True), n.to(tl.int32).to(tl.float64)


@triton.jit
def atanh_argument(minus_f):
    """s = f / (2 + f), so that ln(1 + f) = 2 atanh(s); minus_f: -f."""
    d = constant(2.0) - minus_f
    return minus_quotient(minus_f, d, d.to(tl.float32))


@triton.jit
def ln_of(s, n):
    """n ln 2 + 2 atanh(s)."""
    z = s * s
    y = tl.fma(s * z, polynomial(z, ATANH), s + s)
    return tl.fma(n, constant(LN2_HIGH), tl.fma(n, constant(LN2_LOW), y))


@triton.jit
def wide_log(x):
    m, n = split(x.to(tl.float64))
    return ln_of(atanh_argument(constant(1.0) - m), n)


@triton.jit
def wide_log2(x):
    m, n = split(x.to(tl.float64))
    s = atanh_argument(constant(1.0) - m)
    z = s * s
    rest = tl.fma(z, polynomial(z, ATANH_LOG2), constant(TWO_LOG2_E_LOW))
    return n + tl.fma(s, constant(TWO_LOG2_E_HIGH), s * rest)


@triton.jit
def wide_log10(x):
    m, n = split(x.to(tl.float64))
    s = atanh_argument(constant(1.0) - m)
    z = s * s
    rest = tl.fma(z, polynomial(z, ATANH_LOG10), constant(TWO_LOG10_E_LOW))
    y = tl.fma(s, constant(TWO_LOG10_E_HIGH), s * rest)
    return tl.fma(n, constant(LOG10_2_HIGH), tl.fma(n, constant(LOG10_2_LOW), y))


@triton.jit
def wide_log1p(x):
    """+0 at both zeros."""
    x = x.to(tl.float64)
    m, n = split(x + constant(1.0))
    return ln_of(atanh_argument(tl.where(n == 0.0, x * constant(-1.0), constant(1.0) - m)), n)


@triton.jit
def _ends(x, y):
    """y, a logarithm of x, but at 0, below it, and at infinity."""
    y = tl.where(x > 0.0, y, float("nan"))
    y = tl.where(x == 0.0, float("-inf"), y)
    return tl.where(x == float("inf"), x, y)


@triton.jit
def log(x):
    """RN32(ln x). -inf at both zeros, NaN below."""
    return _ends(x, patched(x, wide_log(x).to(tl.float32), LOG_PATCHES))


@triton.jit
def log2(x):
    """RN32(log2 x). -inf at both zeros, NaN below."""
    return _ends(x, wide_log2(x).to(tl.float32))


@triton.jit
def log10(x):
    """RN32(log10 x). -inf at both zeros, NaN below."""
    return _ends(x, patched(x, wide_log10(x).to(tl.float32), LOG10_PATCHES))


@triton.jit
def log1p(x):
    """RN32(ln(1 + x)); zeros stay. -inf at -1, NaN below."""
    y = patched(x, wide_log1p(x).to(tl.float32), LOG1P_PATCHES)
    y = tl.where(x > -1.0, y, float("nan"))
    y = tl.where(x == -1.0, float("-inf"), y)
    return tl.where((x == 0.0) | (x == float("inf")), x, y)
