"""What the correctly rounded functions share, as in cpu/rounded/arithmetic.py: polynomials, a quotient, patches."""

import triton
import triton.language as tl

from repkernels.coefficients import arithmetic as c

SEED = tl.constexpr(c.SEED)


@triton.jit
def constant(VALUE: tl.constexpr):
    """A binary64 scalar: Triton 3.6 rounds bare constants of `tl.fma` to fp32."""
    return tl.full([], VALUE, tl.float64)


@triton.jit
def polynomial(x, COEFFICIENTS: tl.constexpr):
    """Horner's rule by fma; COEFFICIENTS: a tuple, highest degree first."""
    p = tl.fma(x, constant(COEFFICIENTS[0]), constant(COEFFICIENTS[1]))
    for i in tl.static_range(2, len(COEFFICIENTS)):
        p = tl.fma(p, x, constant(COEFFICIENTS[i]))
    return p


@triton.jit
def minus_quotient(a, b, b32):
    """-a / b in binary64, wrong by little over half an ulp; b32: b > 0 rounded to fp32, far from overflow.

    Integer arithmetic gives a first fp32 estimate, and no division by the hardware, of which a binary64 one costs more
    than all of this: Newton's steps in fp32, then one in binary64, then the quotient's remainder.
    """
    r = (tl.full([], SEED, tl.int32) - b32.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    e = tl.fma(b32, r, 1.0)
    r = tl.fma(r, tl.fma(e, e, e), r)
    r = tl.fma(r, tl.fma(b32, r, 1.0), r)
    v = r.to(tl.float64)
    v = tl.fma(v, tl.fma(b, v, constant(1.0)), v)
    q = a * v
    return tl.fma(tl.fma(b, q, a), v, q)


@triton.jit
def minus_reciprocal(b, b32):
    """-1 / b likewise, by a step of the third order in binary64."""
    r = (tl.full([], SEED, tl.int32) - b32.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    e = tl.fma(b32, r, 1.0)
    r = tl.fma(r, tl.fma(e, e, e), r)
    r = tl.fma(r, tl.fma(b32, r, 1.0), r)
    v = r.to(tl.float64)
    e = tl.fma(b, v, constant(1.0))
    return tl.fma(v, tl.fma(e, e, e), v)


@triton.jit
def clamped(x, LOW: tl.constexpr, HIGH: tl.constexpr):
    """x between bounds; NaN stays."""
    x = tl.where(x < LOW, LOW, x)
    return tl.where(x > HIGH, HIGH, x)


@triton.jit
def at_most(x, HIGH: tl.constexpr):
    """x, or HIGH where that is less; NaN stays."""
    return tl.where(x > HIGH, HIGH, x)


@triton.jit
def magnitude(x):
    """|x| of fp32 x; NaN stays."""
    return (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def with_sign(y, x):
    """|y| with the sign of x."""
    sign = x.to(tl.int32, bitcast=True) & -0x80000000
    return ((y.to(tl.int32, bitcast=True) & 0x7FFFFFFF) | sign).to(tl.float32, bitcast=True)


@triton.jit
def power_of_two(shifted):
    """2^n from the binary64 bits n << 52."""
    return (shifted + 0x3FF0000000000000).to(tl.float64, bitcast=True)


@triton.jit
def scaled(y, shifted):
    """y * 2^n for normal y and result, from the bits n << 52."""
    return (y.to(tl.int64, bitcast=True) + shifted).to(tl.float64, bitcast=True)


@triton.jit
def patched(x, y, PATCHES: tl.constexpr):
    """y, but for the x whose bits are listed; PATCHES: pairs (bits of x as int32, f(x))."""
    bits = x.to(tl.int32, bitcast=True)
    for i in tl.static_range(len(PATCHES)):
        y = tl.where(bits == PATCHES[i][0], PATCHES[i][1], y)
    return y
