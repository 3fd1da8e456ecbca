"""sqrt, rsqrt, reciprocal of a block of fp32 numbers, correctly rounded, as in cpu/rounded/root.py."""

import triton
import triton.language as tl

from repkernels.coefficients import root as c
from repkernels.kernels.rounded.arithmetic import constant

SEED = tl.constexpr(c.SEED)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)


@triton.jit
def sqrt(x):
    """RN32(sqrt(x)); zeros stay, NaN below."""
    return tl.sqrt_rn(x)


@triton.jit
def reciprocal(x):
    """RN32(1 / x)."""
    return tl.div_rn(tl.full([], 1.0, tl.float32), x)


@triton.jit
def wide_rsqrt(x):
    """1 / sqrt(x) in binary64 of normal x > 0: a first estimate by integers, then Newton's steps."""
    r = (tl.full([], SEED, tl.int32) - (x.to(tl.int32, bitcast=True) >> 1)).to(tl.float32, bitcast=True)
    minus_half = x * -0.5
    r = r * tl.fma(minus_half * r, r, 1.5)
    r = r * tl.fma(minus_half * r, r, 1.5)
    r = r * tl.fma(minus_half * r, r, 1.5)
    v = r.to(tl.float64)
    # The product of two fp32 numbers is exact.
    e = tl.fma((x.to(tl.float64) * constant(-1.0)) * v, v, constant(1.0))
    return tl.fma(v * e, tl.fma(e, constant(0.375), constant(0.5)), v)


@triton.jit
def rsqrt(x):
    """RN32(1 / sqrt(x)); an infinity of its sign at a zero, NaN below."""
    small = x < SMALLEST_NORMAL
    scaled = tl.where(small, x * 2.0**24, x)
    y = wide_rsqrt(scaled).to(tl.float32)
    y = tl.where(small, y * 2.0**12, y)
    y = tl.where(x > 0.0, y, float("nan"))
    y = tl.where(x == float("inf"), 0.0, y)
    infinity = (x.to(tl.int32, bitcast=True) | 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(x == 0.0, infinity, y)
