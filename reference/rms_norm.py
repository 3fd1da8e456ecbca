"""rms_norm of rows x (R, C), SPEC.md, "rms_norm"."""

import numpy as np

from reference import formats
from reference.layer_norm import Optional, affine
from reference.sum import tree


def forward(x: np.ndarray, weight: Optional, eps: float, dtype: str) -> np.ndarray:
    """The rows over their root mean square, in `dtype`."""
    x = np.asarray(x, formats.compute_type(dtype))
    with np.errstate(all="ignore"):
        return formats.rounded(affine(x * _inverse(x, eps)[:, None], weight, None), dtype)


def backward(
    grad: np.ndarray, x: np.ndarray, weight: Optional, eps: float, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of x (in `dtype`) and weight (in the computing format)."""
    x = np.asarray(x, formats.compute_type(dtype))
    with np.errstate(all="ignore"):
        r = _inverse(x, eps)[:, None]
        xhat = x * r
        g = grad if weight is None else grad * weight
        a = tree((g * xhat).T) / x.dtype.type(x.shape[1])
        return formats.rounded(r * (g - xhat * a[:, None]), dtype), tree(grad * xhat)


def _inverse(x: np.ndarray, eps: float) -> np.ndarray:
    """div_rn(1, sqrt_rn(RN(mean square + eps))) of each row."""
    wide = x.dtype.type
    return wide(1) / np.sqrt(tree((x * x).T) / wide(x.shape[1]) + wide(eps))
