"""Initial values that are more than one draw, SPEC.md, "Initialisation"."""

import math

import numpy as np

from reference import formats
from reference.random import normal, words64
from reference.sum import tree


def trunc_normal(
    shape: tuple[int, ...], seed: int, stream: int, mean: float, std: float, low: float, high: float
) -> np.ndarray:
    """fp32."""
    count = math.prod(shape)
    out = normal(seed, stream, count, mean, std)
    for turn in range(1, 256):
        outside = (out < np.float32(low)) | (out > np.float32(high))
        if not outside.any():
            break
        out = np.where(outside, normal(seed, stream, count, mean, std, turn), out)
    return np.clip(out, np.float32(low), np.float32(high)).reshape(shape)


def orthogonal(shape: tuple[int, ...], seed: int, stream: int, gain: float, dtype: str) -> np.ndarray:
    """In `dtype`."""
    rows = shape[0]
    matrix = normal(seed, stream, math.prod(shape)).reshape(rows, -1).astype(np.float64)
    v = matrix.copy() if rows <= matrix.shape[1] else matrix.T.copy()
    for k in range(len(v)):
        v[k] = v[k] / np.sqrt(tree(v[k] * v[k]))
        for j in range(k + 1, len(v)):
            v[j] = v[j] - v[k] * tree(v[j] * v[k])
    v = v * np.float64(gain)
    result = (v if rows <= matrix.shape[1] else v.T).reshape(shape)
    return result if dtype == "float64" else formats.rounded(result.astype(np.float32), dtype)


def sparse(shape: tuple[int, int], seed: int, stream: int, sparsity: float, std: float) -> np.ndarray:
    """fp32, of two streams."""
    rows, cols = shape
    values = normal(seed, stream, rows * cols, 0.0, std).reshape(shape)
    drawn = np.array(words64(seed, stream + 1, rows * cols), dtype=np.uint64).reshape(shape)
    lowest = np.argsort(drawn, axis=0, kind="stable")[: math.ceil(sparsity * rows)]
    np.put_along_axis(values, lowest, np.float32(0), axis=0)
    return values
