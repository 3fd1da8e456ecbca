"""Device functions that several kernels share: sums by halving, the order of MAX, exp_f32, ln_f32.

Every line is one rounded operation, as in cpu/functions.py (SPEC.md, "Functions"). Division of fp32 is `tl.div_rn`,
since `/` is approximate there; that of fp64 is `/`, which rounds correctly and is all that Triton 3.6 has.
"""

import triton
import triton.language as tl

LANES = tl.constexpr(1024)
BLOCK = tl.constexpr(65536)

LOG2_E = tl.constexpr(float.fromhex("0x1.715476p+0"))
MAGIC = tl.constexpr(float.fromhex("0x1.8p+23"))
MINUS_LN2_HIGH = tl.constexpr(-float.fromhex("0x1.62e430p-1"))
MINUS_LN2_LOW = tl.constexpr(float.fromhex("0x1.05c610p-29"))
C0 = tl.constexpr(1.9875691500e-4)
C1 = tl.constexpr(1.3981999507e-3)
C2 = tl.constexpr(8.3334519073e-3)
C3 = tl.constexpr(4.1665795894e-2)
C4 = tl.constexpr(1.6666659713e-1)
C5 = tl.constexpr(5.0000001201e-1)
# The last x whose power is not below 2^-126 by the sequence.
LEAST = tl.constexpr(float.fromhex("-0x1.5d589ep+6"))

SQRT_HALF_BITS = tl.constexpr(0x3FE6A09E667F3BCD)
LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e42feep-1"))
LN2_LOW = tl.constexpr(float.fromhex("0x1.a39ef35793c76p-33"))

NAN_KEY = tl.constexpr(0x7FFFFFFF)
LOWEST_KEY = tl.constexpr(-0x7F800001)


@triton.jit
def minus_zero(TYPE: tl.constexpr):
    """-0, to which any x may be added without changing it, as a scalar: Triton 3.6 reads the literal -0.0 as +0."""
    if TYPE == tl.float64:
        return tl.full([], -0x8000000000000000, tl.int64).to(tl.float64, bitcast=True)
    return tl.full([], -0x80000000, tl.int32).to(tl.float32, bitcast=True).to(TYPE)


@triton.jit
def tree_sum(v, ROWS: tl.constexpr):
    """v[:h] + v[h:] of v (ROWS,), a power of two, until one is left; `tl.sum` has one order over two elements only."""
    for i in tl.static_range(1, ROWS.bit_length() - 1):
        v = tl.sum(tl.reshape(v, (2, ROWS >> i)), 0)
    return tl.sum(v, 0)


@triton.jit
def tree_sum_rows(v, ROWS: tl.constexpr, COLS: tl.constexpr):
    """`tree_sum` of every column of v (ROWS, COLS) -> (COLS,)."""
    for i in tl.static_range(1, ROWS.bit_length() - 1):
        v = tl.sum(tl.reshape(v, (2, ROWS >> i, COLS)), 0)
    return tl.sum(v, 0)


@triton.jit
def order_key(x):
    """int32 keys in the order of fp32 x, with -0 below +0 and NaN above all: an integer maximum has no order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(x != x, NAN_KEY, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def from_order_key(key):
    """The fp32 number that has this key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def exp_f32(x):
    """e**x for fp32 x <= 0, within 1 ulp; +0 below 2^-126. NaN stays."""
    t = tl.fma(x, LOG2_E, MAGIC)
    n = t - MAGIC
    r = tl.fma(n, MINUS_LN2_HIGH, x)
    r = tl.fma(n, MINUS_LN2_LOW, r)
    z = r * r
    p = tl.fma(r, C0, C1)
    p = tl.fma(p, r, C2)
    p = tl.fma(p, r, C3)
    p = tl.fma(p, r, C4)
    p = tl.fma(p, r, C5)
    y = tl.fma(p, z, r) + 1.0
    # The low bits of t are n, and those of MAGIC are 0.
    power = ((t.to(tl.int32, bitcast=True) << 23) + (127 << 23)).to(tl.float32, bitcast=True)
    return tl.where(x < LEAST, 0.0, y * power)


@triton.jit
def ln_f32(x):
    """RN32(ln x) of fp32 x. -inf at both zeros, NaN below."""
    # x = m * 2^k with m in [sqrt(1/2), sqrt(2)); ln x = k ln 2 + 2 atanh((m - 1) / (m + 1)).
    bits = x.to(tl.float64).to(tl.int64, bitcast=True)
    k = (bits - SQRT_HALF_BITS) >> 52
    m = (bits - (k << 52)).to(tl.float64, bitcast=True)
    f = m - 1.0
    g = m + 1.0
    s = f / g
    s_rest = tl.fma(s * -1.0, g, f) / g
    z = s * s
    # Triton 3.6 would round a bare constant of `tl.fma` to fp32.
    p = tl.full([], 2.0 / 25.0, tl.float64)
    for i in tl.static_range(11):
        p = tl.fma(p, z, tl.full([], 2.0 / (23.0 - 2.0 * i), tl.float64))
    tail = (s * z) * p
    n = k.to(tl.float64)
    a = n * LN2_HIGH
    b = s + s
    high = a + b
    low = b - (high - a)
    rest = low + (tl.fma(n, tl.full([], LN2_LOW, tl.float64), s_rest + s_rest) + tail)
    total = high + rest
    result = round_to_odd(total, rest - (total - high)).to(tl.float32)
    result = tl.where(x > 0.0, result, float("nan"))
    result = tl.where(x == 0.0, float("-inf"), result)
    return tl.where(x == float("inf"), x, result)


@triton.jit
def round_to_odd(high, low):
    """high + low, |low| <= ulp(high) / 2, as one binary64 number whose rounding to a shorter format is the sum's."""
    bits = high.to(tl.int64, bitcast=True)
    step = tl.where((low > 0.0) == (high > 0.0), 1, -1)
    return (bits + tl.where((low != 0.0) & ((bits & 1) == 0), step, 0)).to(tl.float64, bitcast=True)
