"""matmul and linear under every contract, straight from SPEC.md: "Contractions" and "matmul and linear".

Operands are arrays of values (formats.py) and the name of their format; results hold values of that format.
"""

from itertools import product

import mpmath
import numpy as np

from reference import formats
from reference.fma import fma32, fma64
from reference.sum import sum_rows

CHUNK = 4096
DIGITS = {"fixed8": 1, "fixed16": 2, "fixed24": 3, "fixed32": 4}
CONTRACTS = ("ordered", *DIGITS)

# Exponents (R,) and integers (R, K), int64.
Quantized = tuple[np.ndarray, np.ndarray]


def matmul(a: np.ndarray, b: np.ndarray, dtype: str, contract: str, bias: np.ndarray | None = None) -> np.ndarray:
    """a @ b (+ bias) by torch.matmul's rules of shape: 1-D operands are a row and a column, batch axes broadcast.

    The contraction in binary32 (binary64 for float64), one addition of the bias, one rounding to `dtype`, then every
    zero is +0.
    """
    compute = formats.compute_type(dtype)
    a, b = np.asarray(a, compute), np.asarray(b, compute)
    left, right = _matrices(a, b)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    lefts = np.broadcast_to(left, batch + left.shape[-2:])
    rights = np.broadcast_to(right, batch + right.shape[-2:])
    out = np.empty((*batch, left.shape[-2], right.shape[-1]), compute)
    for index in np.ndindex(*batch):
        out[index] = contraction(lefts[index], rights[index], contract)
    if b.ndim == 1:
        out = out[..., 0]
    if a.ndim == 1:
        out = out[..., 0, :] if b.ndim > 1 else out[..., 0]
    return stored(out, bias, dtype)


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, dtype: str, contract: str) -> np.ndarray:
    """x @ weight^T + bias, x of shape (..., in), weight (out, in)."""
    return matmul(x, np.asarray(weight).T, dtype, contract, bias)


def gradients(
    grad: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: str, contract: str
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of matmul(a, b): contractions of the output's gradient with the other operand, under `contract`.

    Where an operand was broadcast along batch axes, those axes and the contracted one are flattened into one K, the
    batch axes outermost and in their own order.
    """
    compute = formats.compute_type(dtype)
    a, b, grad = np.asarray(a, compute), np.asarray(b, compute), np.asarray(grad, compute)
    left, right = _matrices(a, b)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    grads = grad.reshape(*batch, left.shape[-2], right.shape[-1])
    grad_a = _operand_gradient(left, grads, np.swapaxes(right, -1, -2), batch, dtype, contract)
    # b^T is the left operand of out^T = b^T @ a^T, so its gradient is found in the same way.
    grad_b = _operand_gradient(np.swapaxes(right, -1, -2), np.swapaxes(grads, -1, -2), left, batch, dtype, contract)
    return grad_a.reshape(a.shape), np.swapaxes(grad_b, -1, -2).reshape(b.shape)


def bias_gradient(grad: np.ndarray, dtype: str) -> np.ndarray:
    """SUM over all leading axes, flattened row-major."""
    return sum_rows(np.asarray(grad).reshape(-1, grad.shape[-1]), dtype)


def stored(r: np.ndarray, bias: np.ndarray | None, dtype: str) -> np.ndarray:
    """Contractions as results: plus the bias (broadcast), rounded to `dtype` once, every zero +0."""
    with np.errstate(all="ignore"):
        if bias is not None:
            r = r + np.asarray(bias, r.dtype)
        return formats.positive_zeros(formats.rounded(r, dtype))


def contraction(a: np.ndarray, b: np.ndarray, contract: str) -> np.ndarray:
    """a (M, K) times b (K, N): binary32 for fp32 arrays, binary64 (`ordered` only) for fp64 arrays."""
    if contract == "ordered":
        return chain(a, b)
    return fixed(a, b, DIGITS[contract])


def chain(a: np.ndarray, b: np.ndarray, present: np.ndarray | None = None) -> np.ndarray:
    """The `ordered` rule in the operands' format. Where `present` (M, K) is False, k takes no part in its row."""
    return ordered64(a, b, present) if a.dtype == np.float64 else ordered(a, b, present)


def ordered(a: np.ndarray, b: np.ndarray, present: np.ndarray | None = None) -> np.ndarray:
    """Chunks of 4096 along K, each an fp32 FMA chain from +0, k ascending; the chunks' results added ascending."""
    (m, k), n = a.shape, b.shape[1]
    whole = k // CHUNK
    part = np.ones((m, k), bool) if present is None else present
    chunks: list[np.ndarray] = []
    if whole:
        # Chunks do not depend on each other, so the whole ones are computed side by side.
        left, left_part = (v[:, : whole * CHUNK].reshape(m, whole, CHUNK).swapaxes(0, 1) for v in (a, part))
        chunks.extend(_chain(left, b[: whole * CHUNK].reshape(whole, CHUNK, n), left_part))
    if k > whole * CHUNK:
        chunks.append(_chain(a[:, whole * CHUNK :], b[whole * CHUNK :], part[:, whole * CHUNK :]))
    if not chunks:
        return np.zeros((m, n), np.float32)
    total = chunks[0]
    with np.errstate(all="ignore"):
        for chunk in chunks[1:]:
            total = total + chunk
    return total


def ordered64(a: np.ndarray, b: np.ndarray, present: np.ndarray | None = None) -> np.ndarray:
    """The same rule in binary64."""
    (m, k), n = a.shape, b.shape[1]
    out = np.zeros((m, n))
    for i, j in np.ndindex(m, n):
        row, column = a[i].tolist(), b[:, j].tolist()
        part = [True] * k if present is None else present[i].tolist()
        total = 0.0
        for start in range(0, k, CHUNK):
            chunk = 0.0
            for place in range(start, min(start + CHUNK, k)):
                if part[place]:
                    chunk = fma64(row[place], column[place], chunk)
            total = chunk if start == 0 else total + chunk
        out[i, j] = total
    return out


def fixed(a: np.ndarray, b: np.ndarray, digits: int) -> np.ndarray:
    """The exact integer contraction of fixed-point digits, one rounding, and the non-finite rule."""
    return fixed_scaled(a, b, quantize(a, digits), quantize(b.T, digits), digits)


def fixed_scaled(
    a: np.ndarray, b: np.ndarray, left: Quantized, right: Quantized, digits: int, present: np.ndarray | None = None
) -> np.ndarray:
    """`fixed` with the scales given: exponents (M,) and integers (M, K) of a, (N,) and (N, K) of b.

    An element whose k takes no part in its row by `present` (M, K) has the integer 0.
    """
    rounded_sum = _rounded_sum(balanced(left[1], digits), balanced(right[1], digits))
    out = scaled(rounded_sum, left[0][:, None] + right[0][None, :])
    touched, value = non_finite(a, b, present)
    return np.where(touched, value, out)


def limit(digits: int) -> int:
    """L: the largest integer whose balanced digits are all 127."""
    return 127 * (256**digits - 1) // 255


def quantize(v: np.ndarray, digits: int) -> Quantized:
    """The exponent e (R,) of every row of v (R, K) and its integers q (R, K), int64."""
    finite = np.where(np.isfinite(v), v, 0).astype(np.float64)
    largest = np.abs(finite).max(axis=1, initial=0.0)
    # Below the answer for every row; counting up finds the smallest e with largest * 2^-e <= L. All steps are exact.
    exponent = np.frexp(largest)[1].astype(np.int64) - 8 * digits
    while (short := np.ldexp(largest, -exponent) > limit(digits)).any():
        exponent += short
    exponent = np.where(largest == 0, 0, exponent)
    return exponent, np.rint(np.ldexp(finite, -exponent[:, None])).astype(np.int64)


def balanced(q: np.ndarray, digits: int) -> np.ndarray:
    """Digits (S, ...) in [-128, 127], most significant first: q = sum_i d_i * 256^(S - 1 - i)."""
    out = np.empty((digits, *q.shape), np.int64)
    for i in reversed(range(digits)):
        out[i] = (q + 128) % 256 - 128
        q = (q - out[i]) // 256
    return out


def pairs(digits: int) -> list[tuple[int, int]]:
    """The digit pairs that take part: i + j <= S, counted from 0."""
    return [(i, j) for i, j in product(range(digits), repeat=2) if i + j <= digits]


def exact_sum(digits_a: np.ndarray, digits_b: np.ndarray) -> np.ndarray:
    """P (M, N) as Python integers, from digits (S, M, K) and (S, N, K)."""
    count = len(digits_a)
    total = np.zeros((digits_a.shape[1], digits_b.shape[1]), object)
    for i, j in pairs(count):
        total += _digit_product(digits_a[i], digits_b[j]).astype(object) * 256 ** (2 * count - 2 - i - j)
    return total


def round32(p: int) -> float:
    """RN32 of an integer below 2^127, by integer arithmetic alone."""
    size = abs(p)
    shift = max(0, size.bit_length() - 24)
    kept, rest = size >> shift, size & ((1 << shift) - 1)
    half = 1 << shift >> 1
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1
    return float((kept << shift) * (1 if p >= 0 else -1))


def scaled(r: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """ldexp(r, e) = (r * 2^e1) * 2^e2 in fp32 with e1 = clamp(e, -126, 127), e2 = clamp(e - e1, -126, 127)."""
    first = np.clip(exponent, -126, 127)
    second = np.clip(exponent - first, -126, 127)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        return (r.astype(np.float32) * np.ldexp(one, first)) * np.ldexp(one, second)


def non_finite(a: np.ndarray, b: np.ndarray, present: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Which outputs have a product with a non-finite operand, and those outputs' values.

    NaN if an operand of such a product is NaN, an infinity meets a zero, or infinite products of both signs occur;
    otherwise the one infinity. Products of finite operands count as finite however large they are.
    """
    shape = (a.shape[0], b.shape[1])
    invalid, plus, minus = (np.zeros(shape, bool) for _ in range(3))
    for k in np.flatnonzero(~(np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=1))):
        x, y = np.broadcast_arrays(a[:, k, None], b[None, k, :])
        special = ~(np.isfinite(x) & np.isfinite(y))
        if present is not None:
            special = special & present[:, k, None]
        invalid |= special & (np.isnan(x) | np.isnan(y) | (x == 0) | (y == 0))
        negative = np.signbit(x) != np.signbit(y)
        plus |= special & ~negative
        minus |= special & negative
    value = np.where(invalid | (plus & minus), np.nan, np.where(plus, np.inf, -np.inf)).astype(np.float32)
    return plus | minus, value


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a (M, K) @ b (K, N) of finite operands as mpmath numbers without any error."""
    with mpmath.workprec(1200):
        lift = np.frompyfunc(lambda x: mpmath.mpf(float(x)), 1, 1)
        x, y = lift(a.astype(np.float64)), lift(b.astype(np.float64))
        return np.array([[mpmath.fdot(zip(row, col, strict=True)) for col in y.T] for row in x], object).reshape(
            len(a), b.shape[1]
        )


def error(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|result - a @ b|, without rounding on the way but one to binary64 at the end."""
    with mpmath.workprec(1200):
        return np.abs(result.astype(np.float64).astype(object) - exact(a, b)).astype(np.float64)


def bound(result: np.ndarray, a: np.ndarray, b: np.ndarray, digits: int) -> np.ndarray:
    """The guaranteed limit of `error` for `fixed` results that are neither subnormal nor overflowing."""
    x, y = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    m_a, m_b = x.max(axis=1, initial=0)[:, None], y.max(axis=0, initial=0)[None, :]
    dropped = {1: 0, 2: 0, 3: 2**16, 4: 2**25 + 2**16}[digits]
    steps = (m_a * y.sum(axis=0)[None, :] + m_b * x.sum(axis=1)[:, None]) / limit(digits)
    return (
        steps
        + a.shape[1] * m_a * m_b * (1 + dropped) / limit(digits) ** 2
        + 2.0**-24 * np.abs(result.astype(np.float64))
    )


def _matrices(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A 1-D left operand as a row, a 1-D right operand as a column."""
    return (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)


def _chain(a: np.ndarray, b: np.ndarray, part: np.ndarray) -> np.ndarray:
    """FMA chains along k of a (..., M, k) and b (..., k, N), of those k that take part (..., M, k)."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        total = np.where(part[..., :, k, None], fma32(a[..., :, k, None], b[..., k, None, :], total), total)
    return total


def _digit_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x (M, K) @ y (N, K)^T of digits, int64. binary64 is exact here: |sum| <= 2^14 * K, far below 2^53."""
    return (x.astype(np.float64) @ y.astype(np.float64).T).astype(np.int64)


def _rounded_sum(digits_a: np.ndarray, digits_b: np.ndarray) -> np.ndarray:
    """RN32(P). Every term of P is a multiple of 256^max(0, S-2); int64 holds the sum of the quotients up to some K."""
    count, k = len(digits_a), digits_a.shape[2]
    if count > 1 and k > 2 ** (33 - 8 * (count - 2)):
        return np.frompyfunc(round32, 1, 1)(exact_sum(digits_a, digits_b)).astype(np.float32)
    shared = max(0, count - 2)
    total = np.zeros((digits_a.shape[1], digits_b.shape[1]), np.int64)
    for i, j in pairs(count):
        total += _digit_product(digits_a[i], digits_b[j]) * 256 ** (2 * count - 2 - i - j - shared)
    return round32_int64(total) * np.float32(256**shared)


def round32_int64(p: np.ndarray) -> np.ndarray:
    """RN32 of int64: below 2^53 binary64 holds p; above, the last 11 bits only matter as "not zero"."""
    size = np.abs(p)
    sticky = (size >> 11) | (size & 2047 != 0)
    large = sticky.astype(np.float64).astype(np.float32) * np.float32(2048)
    near = np.where(size < 2**53, size.astype(np.float64).astype(np.float32), large)
    return np.where(p < 0, -near, near)


def _operand_gradient(
    operand: np.ndarray, grad: np.ndarray, other: np.ndarray, batch: tuple[int, ...], dtype: str, contract: str
) -> np.ndarray:
    """The gradient of `operand` (..., M, K) from grad (batch, M, N) and other (..., N, K), broadcast to the batch."""
    other = np.broadcast_to(other, batch + other.shape[-2:])
    own = (1,) * (len(batch) - operand.ndim + 2) + operand.shape[:-2]
    spread = [axis for axis, size in enumerate(own) if size == 1 and batch[axis] != 1]
    kept = [axis for axis in range(len(batch)) if axis not in spread]
    m, n, k = *grad.shape[-2:], other.shape[-1]
    kept_shape = [batch[axis] for axis in kept]
    rows, last = len(batch), len(batch) + 1
    length = n * int(np.prod([batch[axis] for axis in spread]))
    x = grad.transpose(*kept, rows, *spread, last).reshape(*kept_shape, m, length)
    y = other.transpose(*kept, *spread, rows, last).reshape(*kept_shape, length, k)
    return matmul(x, y, dtype, contract).reshape(operand.shape)
