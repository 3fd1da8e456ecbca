"""Reductions over any axes, SPEC.md, "Reductions", "Extrema" and "cumsum": results without the reduced axes.

x holds values of the format `dtype` (formats.py); dims: the reduced axes.
"""

from collections.abc import Sequence

import numpy as np

from reference import formats
from reference.functions import exp_f32, ln_f32
from reference.sum import tree

SCAN = 1024


def rows(x: np.ndarray, dims: Sequence[int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """x as (R, N), reduced axes first, each side row-major; and the shape that the N results have."""
    dims = sorted(d % x.ndim for d in dims) if x.ndim else []
    kept = [d for d in range(x.ndim) if d not in dims]
    shape = tuple(x.shape[d] for d in kept)
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64))
    return np.transpose(x, (*dims, *kept)).reshape(count, int(np.prod(shape, dtype=np.int64))), shape


def sum(x: np.ndarray, dims: Sequence[int], dtype: str, out_dtype: str | None = None) -> np.ndarray:
    """SUM; in `out_dtype` if that is wider."""
    out_dtype = out_dtype or dtype
    flat, shape = rows(np.asarray(x, formats.compute_type(out_dtype)), dims)
    with np.errstate(all="ignore"):
        return formats.rounded(tree(flat), out_dtype).reshape(shape)


def mean(x: np.ndarray, dims: Sequence[int], dtype: str) -> np.ndarray:
    flat, shape = rows(x, dims)
    with np.errstate(all="ignore"):
        return formats.rounded(_mean(flat), dtype).reshape(shape)


def mean_gradient(g: np.ndarray, n: int, dtype: str) -> np.ndarray:
    """The gradient of one element of each of the means."""
    with np.errstate(all="ignore"):
        return formats.rounded(g / g.dtype.type(n), dtype)


def var(x: np.ndarray, dims: Sequence[int], dtype: str, correction: float = 1, root: bool = False) -> np.ndarray:
    """The variance, or the standard deviation."""
    flat, shape = rows(x, dims)
    with np.errstate(all="ignore"):
        return formats.rounded(_var(flat, correction, root), dtype).reshape(shape)


def var_gradient(
    g: np.ndarray, x: np.ndarray, dims: Sequence[int], dtype: str, correction: float = 1, root: bool = False
) -> np.ndarray:
    """g: the results' gradients, without the reduced axes."""
    flat, _ = rows(x, dims)
    g = np.asarray(g, flat.dtype).reshape(-1)
    divisor = _divisor(flat, correction)
    with np.errstate(all="ignore"):
        if root:
            stored = formats.rounded(_var(flat, correction, True), dtype)
            scale = np.where(stored == 0, flat.dtype.type(0), (g / stored) / divisor)
        else:
            scale = (g + g) / divisor
        return _restored(formats.rounded((flat - _mean(flat)) * scale, dtype), x.shape, dims)


def norm(x: np.ndarray, dims: Sequence[int], dtype: str, p: float = 2) -> np.ndarray:
    """Norms of order 0, 1, 2, inf and -inf."""
    flat, shape = rows(x, dims)
    with np.errstate(all="ignore"):
        return formats.rounded(_norm(flat, p), dtype).reshape(shape)


def norm_gradient(g: np.ndarray, x: np.ndarray, dims: Sequence[int], dtype: str, p: float = 2) -> np.ndarray:
    flat, _ = rows(x, dims)
    g = np.asarray(g, flat.dtype).reshape(-1)
    sign = np.where(flat > 0, 1, np.where(flat < 0, -1, flat)).astype(flat.dtype)
    with np.errstate(all="ignore"):
        if p == 0:
            grad = np.zeros_like(flat)
        elif p == 1:
            grad = sign * g
        elif p == 2:
            stored = formats.rounded(_norm(flat, 2), dtype)
            grad = flat * np.where(stored == 0, flat.dtype.type(0), g / stored)
        else:
            ties = _ties(np.abs(flat), _norm(flat, p))
            grad = np.where(ties, sign * (g / tree(ties.astype(flat.dtype))), flat.dtype.type(0))
        return _restored(formats.rounded(grad, dtype), x.shape, dims)


def logsumexp(x: np.ndarray, dims: Sequence[int], dtype: str) -> np.ndarray:
    flat, shape = rows(x, dims)
    with np.errstate(all="ignore"):
        return formats.rounded(_logsumexp(flat), dtype).reshape(shape)


def logsumexp_gradient(g: np.ndarray, x: np.ndarray, dims: Sequence[int], dtype: str) -> np.ndarray:
    flat, _ = rows(x, dims)
    g = np.asarray(g, flat.dtype).reshape(-1)
    with np.errstate(all="ignore"):
        d = flat - formats.rounded(_logsumexp(flat), dtype)
        grad = exp_f32(np.where(d > 0, np.float32(0), d)) * g
        return _restored(formats.rounded(grad, dtype), x.shape, dims)


def extreme(x: np.ndarray, dims: Sequence[int], largest: bool = True) -> np.ndarray:
    """MAX or MIN."""
    flat, shape = rows(x, dims)
    return _extreme(flat, largest).reshape(shape)


def extreme_gradient(g: np.ndarray, x: np.ndarray, dims: Sequence[int], dtype: str, largest: bool = True) -> np.ndarray:
    flat, _ = rows(x, dims)
    ties = _ties(flat, _extreme(flat, largest))
    with np.errstate(all="ignore"):
        share = np.asarray(g, flat.dtype).reshape(-1) / tree(ties.astype(flat.dtype))
        return _restored(formats.rounded(np.where(ties, share, flat.dtype.type(0)), dtype), x.shape, dims)


def position(x: np.ndarray, dims: Sequence[int], largest: bool = True) -> np.ndarray:
    """The index, among the flattened reduced axes, of the first NaN or else of the first largest element."""
    flat, shape = rows(x, dims)
    found = np.argmax(flat, axis=0) if largest else np.argmin(flat, axis=0)
    return found.astype(np.int64).reshape(shape)


def cumsum(x: np.ndarray, dim: int, dtype: str, reverse: bool = False) -> np.ndarray:
    """Cumulative sums along `dim`; reverse: from its end."""
    if x.ndim == 0:
        return formats.rounded(x, dtype)
    flat, _ = rows(x, (dim,))
    flat = flat[::-1] if reverse else flat
    out = np.empty_like(flat)
    with np.errstate(all="ignore"):
        carry = np.full(flat.shape[1], -0.0, flat.dtype)
        for start in range(0, len(flat), SCAN):
            out[start : start + SCAN] = carry + _scan(flat[start : start + SCAN])
            carry = out[min(start + SCAN, len(flat)) - 1]
        return _restored(formats.rounded(out[::-1] if reverse else out, dtype), x.shape, (dim,))


def _scan(block: np.ndarray) -> np.ndarray:
    block = block.copy()
    index = np.arange(len(block))
    half = 1
    while half < len(block):
        right = index[index & half != 0]
        left = (right & ~(2 * half - 1)) + half - 1
        block[right] = block[left] + block[right]
        half *= 2
    return block


def _mean(flat: np.ndarray) -> np.ndarray:
    return np.asarray(tree(flat) / flat.dtype.type(len(flat)))


def _divisor(flat: np.ndarray, correction: float) -> np.floating:
    return flat.dtype.type(max(0.0, len(flat) - correction))


def _var(flat: np.ndarray, correction: float, root: bool) -> np.ndarray:
    d = flat - _mean(flat)
    variance = tree(d * d) / _divisor(flat, correction)
    return np.sqrt(variance) if root else np.asarray(variance)


def _norm(flat: np.ndarray, p: float) -> np.ndarray:
    if p == 0:
        return tree((flat != 0).astype(flat.dtype))
    if p == 1:
        return tree(np.abs(flat))
    if p == 2:
        return np.asarray(np.sqrt(tree(flat * flat)))
    return _extreme(np.abs(flat), p > 0)


def _logsumexp(flat: np.ndarray) -> np.ndarray:
    if len(flat) == 0:
        return np.full(flat.shape[1], -np.inf, np.float32)
    largest = _extreme(flat, True)
    return np.where(np.isfinite(largest), largest + ln_f32(tree(exp_f32(flat - largest))), largest)


def _extreme(flat: np.ndarray, largest: bool) -> np.ndarray:
    """Of each column: NaN if it has one; zeros are ordered by their sign."""
    found = flat.max(axis=0) if largest else flat.min(axis=0)
    signed = np.signbit(flat) != largest
    wanted = ((flat == 0) & signed).any(axis=0)
    zero = np.where(wanted == largest, 0.0, -0.0).astype(flat.dtype)
    return np.where(found == 0, zero, found)


def _ties(flat: np.ndarray, result: np.ndarray) -> np.ndarray:
    return (flat == result) | (np.isnan(flat) & np.isnan(result))


def _restored(flat: np.ndarray, shape: tuple[int, ...], dims: Sequence[int]) -> np.ndarray:
    """(R, N) in the shape that it had before `rows`."""
    dims = sorted(d % len(shape) for d in dims) if shape else []
    order = (*dims, *(d for d in range(len(shape)) if d not in dims))
    moved = flat.reshape([shape[d] for d in order])
    return np.transpose(moved, np.argsort(order)) if shape else moved.reshape(())
