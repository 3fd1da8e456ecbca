"""Scalar functions of the CPU kernels: fused multiply-add, storage formats, exp_f32, ln_f32 (SPEC.md, "Functions").

Every line is one rounded operation, as in kernels/functions.py. Numba contracts and re-orders nothing as long as
`fastmath` is off. All of them rely on the caller's `keep_subnormals` (fpu.py).
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload
from torch import Tensor, bfloat16, float16, int16

F32, F64, I32, I64 = np.float32, np.float64, np.int32, np.int64

LOG2_E = F32(float.fromhex("0x1.715476p+0"))
MAGIC = F32(float.fromhex("0x1.8p+23"))
MINUS_LN2_HIGH = F32(-float.fromhex("0x1.62e430p-1"))
MINUS_LN2_LOW = F32(float.fromhex("0x1.05c610p-29"))
C0, C1, C2, C3, C4, C5 = (
    F32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666659713e-1, 5.0000001201e-1)
)
ONE = F32(1)
# The last x whose power is not below 2^-126 by the sequence.
LEAST = F32(float.fromhex("-0x1.5d589ep+6"))

SQRT_HALF_BITS = I64(0x3FE6A09E667F3BCD)
LN2_HIGH = F64(float.fromhex("0x1.62e42feep-1"))
LN2_LOW = F64(float.fromhex("0x1.a39ef35793c76p-33"))
# 2 / (2j + 1): atanh's series, whose argument here stays below 0.1716.
D0, D1, D2, D3, D4, D5, D6, D7, D8, D9, D10, D11 = (F64(2) / F64(2 * j + 1) for j in range(1, 13))


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """RN(a * b + c) of three fp32 or three fp64 numbers."""
    if not (isinstance(a, types.Float) and a == b == c):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


_SAME_SIZE = {
    types.float32: types.int32,
    types.int32: types.float32,
    types.float64: types.int64,
    types.int64: types.float64,
}


@intrinsic
def bitcast(typingctx: Any, x: Any) -> Any:
    """The bits of fp32 (fp64) x as int32 (int64), and back."""
    result = _SAME_SIZE.get(x)
    if result is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(x), codegen


def numbers(x: Tensor) -> np.ndarray:
    """x's memory as an array: fp32 and fp64 as they are, bf16 bits as int16, fp16 bits as uint16 (see `widened`)."""
    if x.dtype == bfloat16:
        return x.detach().view(int16).numpy()
    if x.dtype == float16:
        return x.detach().view(int16).numpy().view(np.uint16)
    return x.detach().numpy()


@njit
def _from_bf16(v):
    return bitcast(I32(I32(v) << 16))


@njit
def _from_fp16(v):
    magnitude = I32(I32(v & 0x7FFF) << 13)
    if magnitude >= 0x0F800000:
        bits = I32(magnitude + 0x70000000)
    elif magnitude < 0x00800000:
        bits = I32(bitcast(bitcast(I32(magnitude + 0x38800000)) - bitcast(I32(0x38800000))))
    else:
        bits = I32(magnitude + 0x38000000)
    return bitcast(I32(bits | (I32(v & 0x8000) << 16)))


@njit
def _to_bf16(r):
    bits = bitcast(r)
    if r != r:
        return np.int16(0x7FC0)
    return np.int16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


@njit
def _to_fp16(r):
    bits = bitcast(r)
    sign = (bits >> 16) & 0x8000
    magnitude = I32(bits & 0x7FFFFFFF)
    if magnitude > 0x7F800000:
        return np.uint16(0x7E00)
    if magnitude >= 0x477FF000:
        return np.uint16(sign | 0x7C00)
    if magnitude < 0x38800000:
        # Adding 1/2 leaves fp16's subnormal unit, 2^-24, as the last bit.
        return np.uint16(sign | (bitcast(bitcast(magnitude) + F32(0.5)) - 0x3F000000))
    return np.uint16(sign | ((magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13))


def widened(v):
    """An element of `numbers(x)` in the format it is computed in: fp32, or fp64 for fp64. Exact."""
    raise NotImplementedError("only inside compiled code")


@overload(widened)
def _widened(v):
    if isinstance(v, types.Float):
        return lambda v: v
    return {types.int16: lambda v: _from_bf16(v), types.uint16: lambda v: _from_fp16(v)}.get(v)


def put(out, i, r):
    """out[i] = r, rounded once to the format of `out`, an array made by `numbers`."""
    raise NotImplementedError("only inside compiled code")


@overload(put)
def _put(out, i, r):
    if isinstance(out.dtype, types.Float):

        def implementation(out, i, r):
            out[i] = r
    elif out.dtype == types.int16:

        def implementation(out, i, r):
            out[i] = _to_bf16(r)
    else:

        def implementation(out, i, r):
            out[i] = _to_fp16(r)

    return implementation


@njit
def exp_f32(x):
    """e**x for fp32 x <= 0, within 1 ulp; +0 below 2^-126. NaN stays."""
    t = fma(x, LOG2_E, MAGIC)
    n = t - MAGIC
    r = fma(n, MINUS_LN2_HIGH, x)
    r = fma(n, MINUS_LN2_LOW, r)
    z = r * r
    p = fma(C0, r, C1)
    p = fma(p, r, C2)
    p = fma(p, r, C3)
    p = fma(p, r, C4)
    p = fma(p, r, C5)
    y = fma(p, z, r) + ONE
    # The low bits of t are n, and those of MAGIC are 0.
    power = bitcast(I32((bitcast(t) << 23) + (127 << 23)))
    return F32(0) if x < LEAST else y * power


@njit
def ln_f32(x):
    """RN32(ln x). -inf at both zeros, NaN below."""
    if not x > F32(0):
        return F32(-np.inf) if x == F32(0) else F32(np.nan)
    if x == F32(np.inf):
        return x
    # x = m * 2^k with m in [sqrt(1/2), sqrt(2)); ln x = k ln 2 + 2 atanh((m - 1) / (m + 1)).
    bits = bitcast(F64(x))
    k = (bits - SQRT_HALF_BITS) >> 52
    m = bitcast(I64(bits - (k << 52)))
    f = m - 1.0
    g = m + 1.0
    s = f / g
    s_rest = fma(-s, g, f) / g
    z = s * s
    p = fma(D11, z, D10)
    p = fma(p, z, D9)
    p = fma(p, z, D8)
    p = fma(p, z, D7)
    p = fma(p, z, D6)
    p = fma(p, z, D5)
    p = fma(p, z, D4)
    p = fma(p, z, D3)
    p = fma(p, z, D2)
    p = fma(p, z, D1)
    p = fma(p, z, D0)
    tail = (s * z) * p
    n = F64(k)
    a = n * LN2_HIGH
    b = s + s
    high = a + b
    low = b - (high - a)
    rest = low + (fma(n, LN2_LOW, s_rest + s_rest) + tail)
    total = high + rest
    return F32(round_to_odd(total, rest - (total - high)))


@njit
def round_to_odd(high, low):
    """high + low, |low| <= ulp(high) / 2, as one binary64 number whose rounding to a shorter format is the sum's."""
    bits = bitcast(high)
    if low != 0.0 and bits & 1 == 0:
        bits += 1 if (low > 0.0) == (high > 0.0) else -1
    return bitcast(I64(bits))


@njit
def larger(a, b):
    """max(a, b) with NaN if either is one, and -0 < +0."""
    if a != a:
        return a
    if a == b:
        return a if bitcast(a) >= bitcast(b) else b
    return a if a > b else b
