"""Softmax cross-entropy of logits x (N, C), SPEC.md, "cross_entropy".

Targets are class indices (N,), int64, or probabilities (N, C).
"""

import numpy as np
from numpy.typing import ArrayLike

from reference import formats
from reference.functions import exp_f32, ln_f32
from reference.sum import tree

ONE = np.float32(1)


def forward(
    x: np.ndarray,
    target: np.ndarray,
    dtype: str,
    reduction: str = "mean",
    weight: np.ndarray | None = None,
    smoothing: float = 0.0,
    ignore_index: int = -100,
) -> np.ndarray:
    """The loss in `dtype`: a scalar, or one per row for reduction "none"."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        _, shifted, total = _shifted(x)
        log_total = ln_f32(total)
        keep, share = _shares(smoothing, x.shape[1])
        if target.ndim == 2:
            c = _coefficients(target, weight, keep, share)
            loss = tree(c.T) * log_total - tree((c * shifted).T)
        else:
            y = np.where(target == ignore_index, 0, target)
            loss = log_total - np.take_along_axis(shifted, y[:, None], axis=1)[:, 0]
            w = None if weight is None else weight[y]
            if share:
                terms = shifted if weight is None else weight * shifted
                t = _mass(weight, x.shape[1]) * log_total - tree(terms.T)
                loss = (keep if w is None else keep * w) * loss + share * t
            elif w is not None:
                loss = w * loss
            loss = np.where(target == ignore_index, np.float32(0), loss)
        if reduction != "none":
            loss = tree(loss)
        if reduction == "mean":
            loss = loss / _count(x, target, weight, ignore_index)
        return formats.rounded(loss, dtype)


def backward(
    grad: ArrayLike,
    x: np.ndarray,
    target: np.ndarray,
    dtype: str,
    reduction: str = "mean",
    weight: np.ndarray | None = None,
    smoothing: float = 0.0,
    ignore_index: int = -100,
) -> np.ndarray:
    """The gradient of the logits in `dtype`; grad is the loss's gradient, a scalar or (N,)."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        _, shifted, total = _shifted(x)
        p = exp_f32(shifted) * (ONE / total)[:, None]
        scale = _scale(grad, x, target, weight, reduction, ignore_index)
        keep, share = _shares(smoothing, x.shape[1])
        if target.ndim == 2:
            c = _coefficients(target, weight, keep, share)
            return formats.rounded((p * tree(c.T)[:, None] - c) * scale, dtype)
        y = np.where(target == ignore_index, 0, target)[:, None]
        w = np.full(y.shape, ONE) if weight is None else weight[y]
        chosen = np.arange(x.shape[1]) == y
        if share:
            a = keep * w
            q = np.full(x.shape, share) if weight is None else np.broadcast_to(share * weight, x.shape)
            result = (p * (a + share * _mass(weight, x.shape[1])) - np.where(chosen, a + q, q)) * scale
        else:
            result = (p - np.where(chosen, ONE, np.float32(0))) * (scale if weight is None else scale * w)
        return formats.rounded(np.where((target == ignore_index)[:, None], np.float32(0), result), dtype)


def target_gradient(
    grad: ArrayLike,
    x: np.ndarray,
    target: np.ndarray,
    dtype: str,
    reduction: str = "mean",
    weight: np.ndarray | None = None,
    smoothing: float = 0.0,
) -> np.ndarray:
    """The gradient of the probabilities in `dtype`."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        _, shifted, total = _shifted(x)
        keep, _ = _shares(smoothing, x.shape[1])
        f = keep if weight is None else keep * weight
        scale = _scale(grad, x, target, weight, reduction, 0)
        return formats.rounded(f * (ln_f32(total)[:, None] - shifted) * scale, dtype)


def maximum(x: np.ndarray) -> np.ndarray:
    """MAX of each row: NaN if the row has one, -0 below +0."""
    largest = x.max(axis=1, keepdims=True)
    return np.where((largest == 0) & ((x == 0) & ~np.signbit(x)).any(axis=1, keepdims=True), np.float32(0), largest)


def _shifted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's maximum (N, 1), the row less its maximum (N, C), and the SUM of the exponentials (N,)."""
    largest = maximum(x)
    shifted = x - largest
    return largest, shifted, tree(exp_f32(shifted).T)


def _shares(smoothing: float, classes: int) -> tuple[np.float32, np.float32]:
    return np.float32(1 - smoothing), np.float32(smoothing / classes)


def _coefficients(target: np.ndarray, weight: np.ndarray | None, keep: np.float32, share: np.float32) -> np.ndarray:
    c = np.asarray(target, np.float32)
    c = keep * c + share if share else c
    return c if weight is None else c * weight


def _mass(weight: np.ndarray | None, classes: int) -> np.float32:
    """W: the SUM of all weights."""
    return np.float32(classes) if weight is None else np.float32(tree(weight))


def _count(x: np.ndarray, target: np.ndarray, weight: np.ndarray | None, ignore_index: int) -> np.float32:
    """What the mean divides by."""
    if target.ndim == 2:
        return np.float32(len(x))
    kept = target != ignore_index
    if weight is None:
        return np.float32(kept.sum())
    return np.float32(tree(np.where(kept, weight[np.where(kept, target, 0)], np.float32(0))))


def _scale(
    grad: ArrayLike, x: np.ndarray, target: np.ndarray, weight: np.ndarray | None, reduction: str, ignore_index: int
) -> np.ndarray:
    """Each row's gradient of its loss, (N, 1)."""
    upstream = np.asarray(grad, np.float32)
    if reduction == "mean":
        upstream = upstream / _count(x, target, weight, ignore_index)
    return np.broadcast_to(upstream, len(x))[:, None]
