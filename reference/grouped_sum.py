"""Sums of the terms that an index sends to one target, SPEC.md, "Grouped sums"."""

import numpy as np

from reference import formats
from reference.sum import tree


def grouped_sum(x: np.ndarray, index: np.ndarray, targets: int, dtype: str, mean: bool = False) -> np.ndarray:
    """x (P, C), index (P,) -> (targets, C): SUM of the rows at the positions whose index is t, not rounded to a half.

    mean: each divided by the number of its positions.
    """
    x = np.asarray(x, formats.compute_type(dtype))
    out = np.zeros((targets, x.shape[1]), x.dtype)
    for t in np.unique(index):
        if 0 <= t < targets:
            rows = x[index == t]
            with np.errstate(all="ignore"):
                out[t] = tree(rows) / x.dtype.type(len(rows)) if mean else tree(rows)
    return out


def embedding_gradient(
    g: np.ndarray, index: np.ndarray, targets: int, dtype: str, padding_idx: int | None = None, by_freq: bool = False
) -> np.ndarray:
    """g (*, C), index (*) -> (targets, C)."""
    flat = np.where(index == padding_idx, -1, index).reshape(-1)
    return formats.rounded(grouped_sum(g.reshape(len(flat), g.shape[-1]), flat, targets, dtype, by_freq), dtype)


def index_add(
    base: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray, dtype: str, alpha: float = 1
) -> np.ndarray:
    moved: np.ndarray = np.moveaxis(np.asarray(base, formats.compute_type(dtype)), dim, 0)
    columns = int(np.prod(moved.shape[1:]))
    rows = np.moveaxis(source, dim, 0).reshape(len(index), columns)
    flat = moved.reshape(len(moved), columns)
    total = grouped_sum(rows, index, len(moved), dtype)
    with np.errstate(all="ignore"):
        added = np.where(np.isin(np.arange(len(moved)), index)[:, None], flat + flat.dtype.type(alpha) * total, flat)
        return np.moveaxis(formats.rounded(added, dtype).reshape(moved.shape), 0, dim)


def scatter_sum(src: np.ndarray, dim: int, index: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The gradient of gather: SUM at each target of `shape`."""
    places: list[np.ndarray] = list(np.indices(index.shape))
    places[dim] = index
    targets = np.ravel_multi_index(places, shape).reshape(-1)
    terms = src[tuple(slice(n) for n in index.shape)].reshape(-1, 1)
    return formats.rounded(grouped_sum(terms, targets, int(np.prod(shape)), dtype), dtype).reshape(shape)


def scatter_add(base: np.ndarray, dim: int, index: np.ndarray, src: np.ndarray, dtype: str) -> np.ndarray:
    places: list[np.ndarray] = list(np.indices(index.shape))
    places[dim] = index
    targets = np.ravel_multi_index(places, base.shape).reshape(-1)
    terms = src[tuple(slice(n) for n in index.shape)].reshape(-1, 1)
    return index_add(base.reshape(-1, 1), 0, targets, terms, dtype).reshape(base.shape)


def bincount(index: np.ndarray, weights: np.ndarray, dtype: str, minlength: int = 0) -> np.ndarray:
    """Weighted counts."""
    size = max(minlength, int(index.max()) + 1 if index.size else 0)
    return grouped_sum(weights[:, None], index, size, dtype)[:, 0]
