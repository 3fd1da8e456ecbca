"""Arithmetic that several kernels share: powers of two, digits, the order of tiles, the last steps of a contraction."""

import triton
import triton.language as tl

# The largest 24-bit significand that a leading digit still holds, by number of digits (SPEC.md, "Scale").
LAST_SIGNIFICAND = (0, 16646144, 16711168, 16711422, 16711422)


@triton.jit
def power_of_two(e):
    """2**e in fp32 for int32 e in -126..127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def ldexp(x, e):
    """x * 2**e in two steps, exact but where the result is subnormal or overflows."""
    e1 = tl.minimum(tl.maximum(e, -126), 127)
    e2 = tl.minimum(tl.maximum(e - e1, -126), 127)
    return x * power_of_two(e1) * power_of_two(e2)


@triton.jit
def magnitude(v):
    """The bits of |v| as int32, for fp32 v."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_exponent(bits, S: tl.constexpr, LAST: tl.constexpr):
    """The smallest e with m * 2**-e <= L, from the bits of the finite fp32 m >= 0; 0 for m = 0. No float arithmetic."""
    subnormal = bits < 0x00800000
    normalised = tl.where(subnormal, bits.to(tl.float32).to(tl.int32, bitcast=True), bits)
    e = (normalised >> 23) - tl.where(subnormal, 127 + 149, 127) - (8 * S - 2)
    significand = (normalised & 0x007FFFFF) | 0x00800000
    return tl.where(bits == 0, 0, e + (significand > LAST).to(tl.int32))


@triton.jit
def round_half_even(y, S: tl.constexpr):
    """fp32 y, |y| <= L, to the nearest int32, ties to even, by additions instead of an instruction that flushes."""
    if S < 3:
        return (y + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    size = tl.abs(y)
    if S == 3:
        # L is below 2**23, so the sum's last bit is 1.
        q = (size + 8388608.0).to(tl.int32, bitcast=True) - 0x4B000000
    else:
        size = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
        q = size.to(tl.int32)
    return tl.where(y < 0, -q, q)


@triton.jit
def quantized(v, e, S: tl.constexpr):
    """rhe(v * 2**-e) as int32 for fp32 v (rows, k) and int32 e (rows,); 0 where v is not finite."""
    return round_half_even(ldexp(tl.where(magnitude(v) < 0x7F800000, v, 0.0), -e[:, None]), S)


@triton.jit
def low_digit(q):
    """The balanced base-256 digit of lowest weight as int8, and what is left above it."""
    return q.to(tl.int8), (q + 128) >> 8


@triton.jit
def tile_of(t, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Tile number -> (tile row, tile column), GROUP tile rows at a time, so that L2 serves the operands."""
    rows, cols = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = t // (GROUP * cols)
    first = group * GROUP
    height = min(rows - first, GROUP)
    return first + (t % (GROUP * cols)) % height, (t % (GROUP * cols)) // height


@triton.jit
def positive_zeros(r, FORMAT: tl.constexpr):
    """r with +0 where rounding to the output type gives a zero: up to half of its smallest subnormal."""
    smallest: tl.constexpr = 2.0**-134 if FORMAT == tl.bfloat16 else 2.0**-25 if FORMAT == tl.float16 else 0.0
    return tl.where(tl.abs(r) <= smallest, 0.0, r)


@triton.jit
def store_result(r, bias, c, batch, rows, cols, M, N, stride_b, stride_m, stride_n, BIAS: tl.constexpr):
    """Adds the bias, rounds once to the output type, stores every zero as +0. BIAS: 0 none, 1 by column, 2 by row."""
    if BIAS == 1:
        r = r + tl.load(bias + cols, mask=cols < N, other=0.0).to(r.dtype)[None, :]
    if BIAS == 2:
        r = r + tl.load(bias + rows, mask=rows < M, other=0.0).to(r.dtype)[:, None]
    y = positive_zeros(r, c.dtype.element_ty).to(c.dtype.element_ty)
    at = (
        c
        + batch.to(tl.int64) * stride_b
        + rows.to(tl.int64)[:, None] * stride_m
        + cols.to(tl.int64)[None, :] * stride_n
    )
    tl.store(at, y, mask=(rows < M)[:, None] & (cols < N)[None, :])
