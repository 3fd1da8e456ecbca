"""x^y correctly rounded, as in kernels/rounded/power.py, which says how and why."""

import numpy as np
from numba import njit

from repkernels.coefficients import power as c
from repkernels.cpu.functions import bitcast, fma, round_to_odd
from repkernels.cpu.rounded.arithmetic import magnitude, minus_quotient, scaled
from repkernels.cpu.rounded.double_double import renormalized, series, times
from repkernels.cpu.rounded.logarithm import split

F32, F64, I32 = np.float32, np.float64, np.int32

LOG2_TAIL, LOG2_HEAD, EXP2_TAIL, EXP2_HEAD = c.LOG2_TAIL, c.LOG2_HEAD, c.EXP2_TAIL, c.EXP2_HEAD
MAGIC, MAGIC_F32 = F64(1.5 * 2.0**52), F32(1.5 * 2.0**23)
ONE, ZERO, INFINITY = F32(1), F32(0), F32(np.inf)


@njit
def log2_words(u):
    """log2(u) of a normal binary64 u > 0 with at most 24 bits, as high + low."""
    m, n = split(u)
    minus_f, d = 1.0 - m, m + 1.0
    sh = minus_quotient(minus_f, d, F32(d))
    sl = minus_quotient(fma(sh, d, minus_f), d, F32(d))
    zh, zl = times(sh, sl, sh, sl)
    ph, pl = series(zh, zl, LOG2_TAIL, LOG2_HEAD)
    h, l = times(sh, sl, ph, pl)
    high, low = renormalized(n, h)
    return renormalized(high, low + l)


@njit
def power_of_magnitude(a, y):
    """RN32(a^y) of finite a > 0 and finite y."""
    h, l = log2_words(F64(a))
    wide = F64(y)
    th, tl = times(h, l, wide, 0.0)
    th = min(max(th, -200.0), 200.0)
    t = th + MAGIC
    rh, rl = renormalized(th - (t - MAGIC), tl if abs(th) < 200.0 else 0.0)
    ph, pl = series(rh, rl, EXP2_TAIL, EXP2_HEAD)
    ph, pl = renormalized(ph, pl)
    eighths = y * F32(8)
    few = (y > ZERO) & (y <= F32(15)) & ((eighths + MAGIC_F32) - MAGIC_F32 == eighths)
    pl = 0.0 if few & (abs(pl) < 2.0**-80) else pl
    return F32(scaled(round_to_odd(ph, pl), bitcast(t) << 52))


@njit
def whole_and_odd(y):
    """Whether y is an integer, and an odd one; infinities and zeros are even integers."""
    bits = I32(bitcast(y) & 0x7FFFFFFF)
    point = I32(150) - (bits >> 23)
    inside = min(max(point, I32(0)), I32(24))
    digits = (bits & 0x7FFFFF) | 0x800000
    below = digits & ((I32(1) << inside) - I32(1))
    whole = ((below == 0) & (point < 24)) | (bits == 0)
    return whole, whole & (point >= 0) & ((digits >> inside) & 1 == 1)


@njit
def pow(x, y):
    """RN32(x^y), with the special values of C99."""
    a = magnitude(x)
    finite = (a > ZERO) & (a < INFINITY) & (magnitude(y) < INFINITY)
    r = power_of_magnitude(a if finite else ONE, y if finite else ONE)
    r = ((INFINITY if (a > ONE) == (y > ZERO) else ZERO) if a != ONE else ONE) if not finite else r
    whole, odd = whole_and_odd(y)
    r = -r if (bitcast(x) < 0) & odd else r
    r = F32(np.nan) if (x < ZERO) & (a < INFINITY) & ~whole else r
    r = F32(np.nan) if (x != x) | (y != y) else r
    return ONE if (x == ONE) | (y == ZERO) else r
