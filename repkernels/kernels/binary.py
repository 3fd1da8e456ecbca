"""Division and square root of fp32 and fp64, correctly rounded."""

import triton
import triton.language as tl


@triton.jit
def divide(a, b):
    """RN(a / b)."""
    if a.dtype == tl.float64:
        result = a / b
    else:
        result = tl.div_rn(a, b)
    return result


@triton.jit
def square_root(x):
    """RN(sqrt(x)); NaN below 0."""
    if x.dtype == tl.float64:
        result = _square_root_64(x)
    else:
        result = tl.sqrt_rn(x)
    return result


@triton.jit
def _square_root_64(x):
    """Newton's iteration from an fp32 root, and an exact look at its neighbours: Triton 3.6 has no such function.

    x = m * 4^e with m in [1, 4). s approximates sqrt(m) within an ulp, u = 2^-52. m - s * s is exact in an fma, and as
    multiples of u^2 are compared, sqrt(m) > s + u / 2 just where it exceeds s * u; likewise below.
    """
    bits = (x * 1.0).to(tl.int64, bitcast=True)
    tiny = (bits >> 52) == 0
    scaled = tl.where(tiny, x * tl.full([], 2.0**54, tl.float64), x).to(tl.int64, bitcast=True)
    exponent = (scaled >> 52) - 1023
    e = exponent >> 1
    m = (scaled - (e << 53)).to(tl.float64, bitcast=True)
    one = tl.full([], 1.0, tl.float32)
    y = tl.div_rn(one, tl.sqrt_rn(m.to(tl.float32))).to(tl.float64)
    s = m * y
    for _ in tl.static_range(2):
        rest = tl.fma(s * -1.0, s, m)
        s = tl.fma(rest * 0.5, y, s)
    u = tl.full([], 2.0**-52, tl.float64)
    rest = tl.fma(s * -1.0, s, m)
    s = tl.where(rest > s * u, s + u, tl.where(rest <= s * -1.0 * u, s - u, s))
    power = ((e - tl.where(tiny, 27, 0) + 1023) << 52).to(tl.float64, bitcast=True)
    ordinary = (x > 0.0) & (x < float("inf"))
    # A zero stays, of either sign, as do +inf and NaN; a negative number gives NaN.
    return tl.where(ordinary, s * power, tl.where(x < 0.0, float("nan"), x))
