"""layer_norm of rows x (R, C), SPEC.md, "layer_norm"; with a residual, of the sum's storage type."""

import numpy as np

from reference import formats
from reference.sum import tree

Optional = np.ndarray | None


def statistics(x: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of terms x (n, ...) along the first axis: their mean, the SUM of squared deviations, div_rn(1, deviation)."""
    wide = x.dtype.type
    n = wide(len(x))
    with np.errstate(all="ignore"):
        mean = tree(x) / n
        d = x - mean
        squares = tree(d * d)
        return mean, squares, wide(1) / np.sqrt(squares / n + wide(eps))


def affine(xhat: np.ndarray, weight: Optional, bias: Optional) -> np.ndarray:
    """RN(RN(xhat * weight) + bias), each step only where its operand is given."""
    with np.errstate(all="ignore"):
        y = xhat if weight is None else xhat * weight
        return y if bias is None else y + bias


def forward(x: np.ndarray, weight: Optional, bias: Optional, eps: float, dtype: str) -> np.ndarray:
    """The rows normalised, in `dtype`."""
    x = np.asarray(x, formats.compute_type(dtype))
    with np.errstate(all="ignore"):
        mean, _, r = statistics(x.T, eps)
        return formats.rounded(affine((x - mean[:, None]) * r[:, None], weight, bias), dtype)


def backward(
    grad: np.ndarray, x: np.ndarray, weight: Optional, eps: float, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of x (in `dtype`), weight and bias (both in the computing format)."""
    x = np.asarray(x, formats.compute_type(dtype))
    with np.errstate(all="ignore"):
        mean, _, r = statistics(x.T, eps)
        xhat = (x - mean[:, None]) * r[:, None]
        g = grad if weight is None else grad * weight
        n = x.dtype.type(x.shape[1])
        a = tree((g * xhat).T) / n
        b = tree(g.T) / n
        dx = r[:, None] * ((g - b[:, None]) - xhat * a[:, None])
        return formats.rounded(dx, dtype), tree(grad * xhat), tree(grad)


def residual_sum(x: np.ndarray, residual: np.ndarray, dtype: str) -> np.ndarray:
    """x + residual, rounded to `dtype`: what add_layer_norm and add_rms_norm normalise."""
    with np.errstate(all="ignore"):
        return formats.rounded(np.asarray(x) + np.asarray(residual), dtype)
