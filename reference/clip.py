"""Clipping of gradients, SPEC.md, of this name."""

import math

import numpy as np

from reference import formats
from reference.sum import tree


def norm(x: np.ndarray, dtype: str, norm_type: float) -> np.ndarray:
    """The norm of one gradient."""
    flat: np.ndarray = np.asarray(x, formats.compute_type(dtype)).reshape(-1)
    with np.errstate(all="ignore"):
        if math.isinf(norm_type):
            return np.max(np.abs(flat), initial=0)
        if norm_type == 1:
            return tree(np.abs(flat))
        return np.sqrt(tree(flat * flat))


def total_norm(grads: list[np.ndarray], dtype: str, norm_type: float) -> np.ndarray:
    """The norm of the norms."""
    compute = formats.compute_type(dtype)
    return norm(
        np.array([norm(g, dtype, norm_type) for g in grads], compute),
        "float64" if compute is np.float64 else "float32",
        norm_type,
    )


def clipped(
    grads: list[np.ndarray], dtype: str, max_norm: float, norm_type: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The total norm, and the gradients of it at most `max_norm`."""
    compute = formats.compute_type(dtype)
    total = total_norm(grads, dtype, norm_type)
    with np.errstate(all="ignore"):
        c = compute(max_norm) / (total + compute(1e-6))
        if c > 1:
            c = compute(1)
        return total, [formats.rounded(np.asarray(g, compute) * c, dtype) for g in grads]
