"""What the correctly rounded functions share, as in kernels/rounded/arithmetic.py: polynomials, a quotient, patches."""

import numpy as np
from numba import njit

from repkernels.coefficients import arithmetic as c
from repkernels.cpu.functions import bitcast, fma

F32, F64, I32, I64 = np.float32, np.float64, np.int32, np.int64

SEED = I32(c.SEED)


@njit
def polynomial(x, coefficients):
    """Horner's rule by fma; coefficients: a tuple, highest degree first."""
    p = fma(x, coefficients[0], coefficients[1])
    for i in range(2, len(coefficients)):
        p = fma(p, x, coefficients[i])
    return p


@njit
def minus_quotient(a, b, b32):
    """-a / b in binary64, wrong by little over half an ulp; b32: b > 0 rounded to fp32, far from overflow."""
    r = bitcast(I32(SEED - bitcast(b32)))
    e = fma(b32, r, F32(1))
    r = fma(r, fma(e, e, e), r)
    r = fma(r, fma(b32, r, F32(1)), r)
    v = F64(r)
    v = fma(v, fma(b, v, 1.0), v)
    q = a * v
    return fma(fma(b, q, a), v, q)


@njit
def minus_reciprocal(b, b32):
    """-1 / b likewise, by a step of the third order in binary64."""
    r = bitcast(I32(SEED - bitcast(b32)))
    e = fma(b32, r, F32(1))
    r = fma(r, fma(e, e, e), r)
    r = fma(r, fma(b32, r, F32(1)), r)
    v = F64(r)
    e = fma(b, v, 1.0)
    return fma(v, fma(e, e, e), v)


@njit
def magnitude(x):
    """|x| of fp32 x; NaN stays."""
    return bitcast(I32(bitcast(x) & 0x7FFFFFFF))


@njit
def with_sign(y, x):
    """|y| with the sign of x."""
    return bitcast(I32((bitcast(y) & 0x7FFFFFFF) | (bitcast(x) & I32(-0x80000000))))


@njit
def power_of_two(shifted):
    """2^n from the binary64 bits n << 52."""
    return bitcast(I64(shifted + 0x3FF0000000000000))


@njit
def scaled(y, shifted):
    """y * 2^n for normal y and result, from the bits n << 52."""
    return bitcast(I64(bitcast(y) + shifted))


@njit
def patched(x, y, patches):
    """y, but for the x whose bits are listed; patches: pairs (bits of x, f(x))."""
    at = bitcast(x)
    for bits, value in patches:
        y = F32(value) if at == bits else y
    return y
