"""Stable sorting by comparison, SPEC.md, "Sorting"."""

import numpy as np


def sort(x: np.ndarray, dim: int, descending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(values, indices) along `dim`. NumPy's stable sort has NaN above everything and zeros equal."""
    if descending:
        last_first = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
        indices = x.shape[dim] - 1 - np.flip(last_first, dim)
    else:
        indices = np.argsort(x, axis=dim, kind="stable")
    return np.take_along_axis(x, indices, dim), indices.astype(np.int64)


def topk(x: np.ndarray, k: int, dim: int, largest: bool = True) -> tuple[np.ndarray, np.ndarray]:
    values, indices = sort(x, dim, largest)
    return np.take(values, range(k), dim), np.take(indices, range(k), dim)


def gradient(g: np.ndarray, indices: np.ndarray, dim: int, size: int) -> np.ndarray:
    """The gradient of the values goes to the elements they came from, +0 to the others."""
    shape = list(g.shape)
    shape[dim] = size
    out = np.zeros(shape, g.dtype)
    np.put_along_axis(out, indices, g, dim)
    return out
