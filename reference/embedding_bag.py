"""Bags of rows, SPEC.md, "embedding_bag"."""

from typing import Any

import numpy as np

from reference import formats
from reference.grouped_sum import embedding_gradient
from reference.sum import tree


def embedding_bag(
    index: np.ndarray,
    weight: np.ndarray,
    offsets: np.ndarray,
    mode: str,
    g: np.ndarray,
    dtype: str,
    factors: np.ndarray | None = None,
    padding_idx: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """index (P,), offsets (B,), g (B, C) -> the result, and the gradients of weight and factors."""
    wide: Any = formats.compute_type(dtype)
    table, upstream = np.asarray(weight, wide), np.asarray(g, wide)
    out = np.zeros((len(offsets), table.shape[1]), wide)
    terms = np.zeros((len(index), table.shape[1]), wide)
    of_factors = np.zeros(len(index), wide)
    borders = [*offsets, len(index)]
    with np.errstate(all="ignore"):
        for b in range(len(offsets)):
            places = [p for p in range(borders[b], borders[b + 1]) if index[p] != padding_idx]
            rows = table[index[places]]
            if not places:
                continue
            if mode == "max":
                for c in range(table.shape[1]):
                    column = rows[:, c]
                    nan = np.isnan(column)
                    best = int(np.argmax(nan)) if nan.any() else int(np.argmax(column + wide(0)))
                    out[b, c] = column[best]
                    terms[places[best], c] = upstream[b, c]
            elif mode == "mean":
                out[b] = tree(rows) / wide(len(places))
                terms[places] = upstream[b] / wide(len(places))
            else:
                w = np.ones((len(places), 1), wide) if factors is None else np.asarray(factors, wide)[places][:, None]
                out[b] = tree(rows * w)
                terms[places] = upstream[b] * w
                of_factors[places] = tree((upstream[b] * rows).T)
    grad = embedding_gradient(formats.rounded(terms, dtype), index, len(table), dtype, padding_idx)
    return (
        formats.rounded(out, dtype),
        grad,
        None if factors is None else formats.rounded(of_factors, dtype),
    )
