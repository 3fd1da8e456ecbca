"""group_norm of x (N, C, S), SPEC.md, "group_norm"."""

import numpy as np

from reference import formats
from reference.layer_norm import Optional, affine, statistics
from reference.sum import tree


def forward(x: np.ndarray, groups: int, weight: Optional, bias: Optional, eps: float, dtype: str) -> np.ndarray:
    """Every (sample, group) normalised over its channels and positions, in `dtype`."""
    x = np.asarray(x, formats.compute_type(dtype))
    xhat, _ = _normalised(x, groups, eps)
    return formats.rounded(affine(xhat, _per_channel(weight), _per_channel(bias)), dtype)


def backward(
    grad: np.ndarray, x: np.ndarray, groups: int, weight: Optional, eps: float, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of x (in `dtype`), weight and bias (both in the computing format)."""
    x = np.asarray(x, formats.compute_type(dtype))
    samples, channels, size = x.shape
    per_group = channels // groups
    with np.errstate(all="ignore"):
        xhat, r = _normalised(x, groups, eps)
        products, sums = tree(np.moveaxis(grad * xhat, 2, 0)), tree(np.moveaxis(grad, 2, 0))
        w = np.ones(channels, x.dtype) if weight is None else weight
        n = x.dtype.type(per_group * size)
        a, b = (tree((w * s).reshape(samples * groups, per_group).T) / n for s in (products, sums))
        a, b, r = (np.repeat(v.reshape(samples, groups), per_group, axis=1)[:, :, None] for v in (a, b, r))
        dx = r * ((grad * w[:, None] - b) - xhat * a)
        return formats.rounded(dx, dtype), tree(products), tree(sums)


def _normalised(x: np.ndarray, groups: int, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """xhat in x's shape, and r of each (sample, group)."""
    rows = x.reshape(x.shape[0] * groups, x.shape[1] // groups * x.shape[2])
    mean, _, r = statistics(rows.T, eps)
    with np.errstate(all="ignore"):
        return ((rows - mean[:, None]) * r[:, None]).reshape(x.shape), r


def _per_channel(v: Optional) -> Optional:
    return None if v is None else v[:, None]
