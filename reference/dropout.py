"""Dropout, SPEC.md, "Dropout"."""

import math

import numpy as np

from reference import formats
from reference.philox import words

ALPHA = 1.7580993408473766


def forward(
    x: np.ndarray, seed: int, stream: int, p: float, dtype: str, alpha: bool = False, inner: int = 1
) -> np.ndarray:
    """Elements inner * j .. inner * j + inner - 1 share word j."""
    scale, shift, dropped = _scalars(p, alpha)
    return _masked(x, seed, stream, p, dtype, scale, shift, dropped, inner)


def backward(
    grad: np.ndarray, seed: int, stream: int, p: float, dtype: str, alpha: bool = False, inner: int = 1
) -> np.ndarray:
    """The gradient of the input."""
    return _masked(grad, seed, stream, p, dtype, _scalars(p, alpha)[0], 0.0, 0.0, inner)


def _scalars(p: float, alpha: bool) -> tuple[float, float, float]:
    if p == 1:
        return 0.0, 0.0, 0.0
    if not alpha:
        return 1 / (1 - p), 0.0, 0.0
    a = 1 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    return a, ALPHA * a * p, ALPHA * a * p - ALPHA * a


def _masked(
    x: np.ndarray, seed: int, stream: int, p: float, dtype: str, scale: float, shift: float, dropped: float, inner: int
) -> np.ndarray:
    compute = formats.compute_type(dtype)
    flat: np.ndarray = np.asarray(x, compute).reshape(-1)
    word = np.repeat(words(seed, stream, -(-flat.size // max(1, inner))).astype(np.int64), inner)[: flat.size]
    with np.errstate(all="ignore"):
        y = flat * compute(scale)
        if shift != 0:
            y = y + compute(shift)
        kept = word < int((1 - p) * 2.0**32)
        return formats.rounded(np.where(kept, y, compute(dropped)), dtype).reshape(np.shape(x))
