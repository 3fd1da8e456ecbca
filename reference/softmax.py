"""Softmax of each row of x (N, C), and its logarithm, SPEC.md, "softmax"."""

import numpy as np

from reference import formats
from reference.cross_entropy import maximum
from reference.functions import exp_f32, ln_f32
from reference.sum import tree

ONE = np.float32(1)


def forward(x: np.ndarray, dtype: str, log: bool = False) -> np.ndarray:
    """The result in `dtype`."""
    x = np.asarray(x, np.float32)
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        shifted = x - maximum(x)
        e = exp_f32(shifted)
        total = tree(e.T)[:, None]
        return formats.rounded(shifted - ln_f32(total) if log else e * (ONE / total), dtype)


def backward(grad: np.ndarray, y: np.ndarray, dtype: str, log: bool = False) -> np.ndarray:
    """The gradient of x in `dtype` from that of y, which is `forward`'s result."""
    g, y = np.asarray(grad, np.float32), np.asarray(y, np.float32)
    with np.errstate(all="ignore"):
        if log:
            result = g - exp_f32(np.where(y > 0, np.float32(0), y)) * tree(g.T)[:, None]
        else:
            result = y * (g - tree((g * y).T)[:, None])
        return formats.rounded(result, dtype)


def along(x: np.ndarray, dtype: str, dim: int, log: bool = False) -> np.ndarray:
    """`forward` along any axis."""
    moved = np.moveaxis(np.asarray(x, np.float32), dim, -1)
    rows = moved.reshape(-1, moved.shape[-1]) if moved.size else moved.reshape(0, 1)
    return np.moveaxis(forward(rows, dtype, log).reshape(moved.shape), -1, dim)
