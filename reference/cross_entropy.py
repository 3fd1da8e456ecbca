"""Softmax cross-entropy of logits x (N, C) and class indices target (N,), SPEC.md, "cross_entropy"."""

import numpy as np
from numpy.typing import ArrayLike

from reference import formats
from reference.functions import exp_f32, ln_f32
from reference.sum import tree

ONE = np.float32(1)


def forward(x: np.ndarray, target: np.ndarray, dtype: str, reduction: str = "mean") -> np.ndarray:
    """The loss in `dtype`: a scalar, or one per row for reduction "none"."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        largest, shifted, total = _shifted(x)
        picked = np.take_along_axis(shifted, target[:, None], axis=1)[:, 0]
        loss = ln_f32(total) - picked
        if reduction != "none":
            loss = tree(loss)
        if reduction == "mean":
            loss = loss / np.float32(len(x))
        return formats.rounded(loss, dtype)


def backward(grad: ArrayLike, x: np.ndarray, target: np.ndarray, dtype: str, reduction: str = "mean") -> np.ndarray:
    """The gradient of the logits in `dtype`; grad is the loss's gradient, a scalar or (N,)."""
    x = np.asarray(x, np.float32)
    upstream = np.asarray(grad, np.float32)
    with np.errstate(all="ignore"):
        _, shifted, total = _shifted(x)
        probability = exp_f32(shifted) * (ONE / total)[:, None]
        scale = upstream / np.float32(len(x)) if reduction == "mean" else upstream
        chosen = np.zeros_like(probability)
        np.put_along_axis(chosen, target[:, None], ONE, axis=1)
        return formats.rounded((probability - chosen) * np.broadcast_to(scale, len(x))[:, None], dtype)


def maximum(x: np.ndarray) -> np.ndarray:
    """MAX of each row: NaN if the row has one, -0 below +0."""
    largest = x.max(axis=1, keepdims=True)
    return np.where((largest == 0) & ((x == 0) & ~np.signbit(x)).any(axis=1, keepdims=True), np.float32(0), largest)


def _shifted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's maximum (N, 1), the row less its maximum (N, C), and the SUM of the exponentials (N,)."""
    largest = maximum(x)
    shifted = x - largest
    return largest, shifted, tree(exp_f32(shifted).T)
