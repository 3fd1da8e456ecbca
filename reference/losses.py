"""Losses of single elements, their sums and gradients, SPEC.md, "Losses of elements" and "nll_loss".

Arrays hold values of `dtype`; v is the weight of positive targets, w that of elements, None where there is none.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from reference import formats, unary
from reference.sum import tree

Array = np.ndarray
F32 = np.float32
ZERO, HALF, ONE = F32(0), F32(0.5), F32(1)


def mse(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    d = x - y
    return d * d, d + d, -(d + d)


def l1(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    d = x - y
    return np.abs(d), _sign(d), -_sign(d)


def smooth_l1(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    d = x - y
    z, beta = np.abs(d), x.dtype.type(parameter)
    gradient = np.where(z < beta, d / beta, _sign(d))
    return np.where(z < beta, HALF * z * z / beta, z - HALF * beta), gradient, -gradient


def huber(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    d = x - y
    z, delta = np.abs(d), x.dtype.type(parameter)
    gradient = np.where(z <= delta, d, delta * _sign(d))
    return np.where(z <= delta, HALF * z * z, delta * (z - HALF * delta)), gradient, -gradient


def bce_with_logits(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    small = unary.forward("softplus", -np.abs(x))
    large = np.abs(x) + small
    of_one, of_zero = np.where(x < 0, large, small), np.where(x < 0, small, large)
    low = unary.forward("sigmoid", -np.abs(x))
    below, above = np.where(x < 0, ONE - low, low), np.where(x < 0, low, ONE - low)
    loss = v * y * of_one + (ONE - y) * of_zero
    return loss, (ONE - y) * above - v * y * below, v * of_one - of_zero


def bce(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    of_one, of_zero = (_bounded(z) for z in (unary.forward("log", x), unary.forward("log1p", -x)))
    d = (ONE - x) * x
    gradient = (x - y) / np.where(d < F32(1e-12), F32(1e-12), d)
    return -(y * of_one + (ONE - y) * of_zero), gradient, of_zero - of_one


def kl_div(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    log = unary.forward("log", y)
    return np.where(y == 0, ZERO - x * y, y * (log - x)), -y, (log - x) + ONE


def kl_div_log(x: Array, y: Array, v: Array, parameter: float) -> tuple[Array, Array, Array]:
    power = unary.forward("exp", y)
    return power * (y - x), -power, power * ((y - x) + ONE)


FORMULAS: dict[str, Callable[[Array, Array, Array, float], tuple[Array, Array, Array]]] = {
    "mse": mse,
    "l1": l1,
    "smooth_l1": smooth_l1,
    "huber": huber,
    "bce_with_logits": bce_with_logits,
    "bce": bce,
    "kl_div": kl_div,
    "kl_div_log": kl_div_log,
}


def forward(
    name: str,
    x: Array,
    y: Array,
    dtype: str,
    reduction: str = "mean",
    w: Array | None = None,
    v: Array | None = None,
    parameter: float = 0.0,
) -> Array:
    """The loss in `dtype`: of x's shape for "none", otherwise a scalar. "batchmean" divides by the first size."""
    with np.errstate(all="ignore"):
        loss = _parts(name, x, y, dtype, w, v, parameter)[0]
        if reduction != "none":
            loss = np.asarray(tree(loss.reshape(-1)))
        if reduction not in ("none", "sum"):
            loss = loss / _count(name, x, dtype, reduction, w)
        return formats.rounded(loss, dtype)


def backward(
    name: str,
    grad: ArrayLike,
    x: Array,
    y: Array,
    dtype: str,
    reduction: str = "mean",
    w: Array | None = None,
    v: Array | None = None,
    parameter: float = 0.0,
) -> tuple[Array, Array]:
    """The gradients of x and y in `dtype`; grad is the loss's gradient, a scalar or of x's shape."""
    with np.errstate(all="ignore"):
        scale: Array = np.asarray(grad, formats.compute_type(dtype))
        if reduction not in ("none", "sum"):
            scale = scale / _count(name, x, dtype, reduction, w)
        _, by_x, by_y = _parts(name, x, y, dtype, w, v, parameter)
        return formats.rounded(by_x * scale, dtype), formats.rounded(by_y * scale, dtype)


def nll(
    x: Array,
    target: Array,
    dtype: str,
    reduction: str = "mean",
    w: Array | None = None,
    ignore_index: int = -100,
    grad: ArrayLike = 1.0,
) -> tuple[Array, Array]:
    """nll_loss of x (N, C) and its gradient from that of the loss, both in `dtype`."""
    wide = formats.compute_type(dtype)
    x, rows = np.asarray(x, wide), np.arange(len(x))
    with np.errstate(all="ignore"):
        ignored = target == ignore_index
        y = np.where(ignored, 0, target)
        chosen: Array = np.ones(len(x), wide) if w is None else np.asarray(w, wide)[y]
        terms = np.where(ignored, wide(0), -(x[rows, y] * chosen))
        loss: Array = terms
        scale: Array = np.asarray(grad, wide)
        if reduction != "none":
            loss = np.asarray(tree(terms))
        if reduction == "mean":
            count = wide((~ignored).sum()) if w is None else tree(np.where(ignored, wide(0), chosen))
            loss, scale = loss / count, scale / count
        result: Array = np.zeros(x.shape, wide)
        result[rows, y] = np.where(ignored, wide(0), -chosen * scale)
        return formats.rounded(loss, dtype), formats.rounded(result, dtype)


def _parts(
    name: str, x: Array, y: Array, dtype: str, w: Array | None, v: Array | None, parameter: float
) -> tuple[Array, Array, Array]:
    """The loss and its derivatives by x and y, weighted."""
    wide = formats.compute_type(dtype)
    x, y = np.asarray(x, wide), np.asarray(y, wide)
    positive = np.ones(x.shape, wide) if v is None else np.broadcast_to(v, x.shape)
    loss, by_x, by_y = FORMULAS[name](x, y, positive, parameter)
    if w is None:
        return loss, by_x, by_y
    w = np.broadcast_to(np.asarray(w, wide), x.shape)
    return w * loss, w * by_x, w * by_y


def _count(name: str, x: Array, dtype: str, reduction: str, w: Array | None) -> Array:
    """What a mean divides by."""
    wide = formats.compute_type(dtype)
    if reduction == "batchmean":
        return wide(len(x))
    if w is not None and name in ("mse", "l1"):
        return np.asarray(tree(np.asarray(w, wide).reshape(-1)))
    return wide(x.size)


def _sign(d: Array) -> Array:
    return np.where(d == 0, d.dtype.type(0), np.sign(d))


def _bounded(x: Array) -> Array:
    return np.where(x < F32(-100), F32(-100), x)
