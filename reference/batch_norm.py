"""batch_norm and instance_norm of x (N, C, S), SPEC.md, sections of these names."""

from typing import NamedTuple

import numpy as np

from reference import formats
from reference.layer_norm import Optional, affine, statistics
from reference.sum import tree


class Running(NamedTuple):
    """A channel's running mean and variance, in the computing format."""

    mean: np.ndarray
    var: np.ndarray


def training(
    x: np.ndarray, weight: Optional, bias: Optional, eps: float, dtype: str, momentum: float, running: Running | None
) -> tuple[np.ndarray, Running | None]:
    """Every channel normalised over samples and positions, in `dtype`; the new running statistics."""
    x = np.asarray(x, formats.compute_type(dtype))
    mean, squares, r = statistics(_terms(x), eps)
    new = None if running is None else _updated(running, mean, squares, x.shape[0] * x.shape[2], momentum)
    return _apply(x, mean, r, weight, bias, dtype), new


def evaluation(x: np.ndarray, weight: Optional, bias: Optional, eps: float, dtype: str, running: Running) -> np.ndarray:
    """Every channel normalised by its running statistics, in `dtype`."""
    x = np.asarray(x, formats.compute_type(dtype))
    return _apply(x, running.mean, _inverse(running, eps), weight, bias, dtype)


def backward(
    grad: np.ndarray, x: np.ndarray, weight: Optional, eps: float, dtype: str, running: Running | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of x (in `dtype`), weight and bias (both in the computing format); running: of `evaluation`."""
    x = np.asarray(x, formats.compute_type(dtype))
    with np.errstate(all="ignore"):
        if running is None:
            mean, _, r = statistics(_terms(x), eps)
        else:
            mean, r = running.mean, _inverse(running, eps)
        xhat = (x - mean[:, None]) * r[:, None]
        products, sums = tree(_terms(grad * xhat)), tree(_terms(grad))
        scale = (r if weight is None else weight * r)[:, None]
        if running is not None:
            return formats.rounded(scale * grad, dtype), products, sums
        n = x.dtype.type(x.shape[0] * x.shape[2])
        a, b = (products / n)[:, None], (sums / n)[:, None]
        return formats.rounded(scale * ((grad - b) - xhat * a), dtype), products, sums


def instance(
    x: np.ndarray, weight: Optional, bias: Optional, eps: float, dtype: str, momentum: float, running: Running | None
) -> tuple[np.ndarray, Running | None]:
    """instance_norm: batch_norm of one sample with N * C channels; the new running statistics are a mean over N."""
    samples, channels, size = x.shape
    w, b = (None if v is None else np.tile(v, samples) for v in (weight, bias))
    old = None if running is None else Running(*(np.tile(v, samples) for v in running))
    y, new = training(x.reshape(1, samples * channels, size), w, b, eps, dtype, momentum, old)
    if new is not None:
        count = new.mean.dtype.type(samples)
        new = Running(*(tree(v.reshape(samples, channels)) / count for v in new))
    return y.reshape(x.shape), new


def instance_backward(
    grad: np.ndarray, x: np.ndarray, weight: Optional, eps: float, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of instance_norm, as of `backward`; those of weight and bias are SUMs over N of a sample's."""
    samples, channels, size = x.shape
    one = (1, samples * channels, size)
    w = None if weight is None else np.tile(weight, samples)
    dx, dw, db = backward(grad.reshape(one), x.reshape(one), w, eps, dtype)
    dw, db = (tree(v.reshape(samples, channels)) for v in (dw, db))
    return dx.reshape(x.shape), dw, db


def _terms(x: np.ndarray) -> np.ndarray:
    """x (N, C, S) as (N * S, C): the terms of each channel, samples outermost."""
    return np.moveaxis(x, 1, 2).reshape(-1, x.shape[1])


def _apply(x: np.ndarray, mean: np.ndarray, r: np.ndarray, weight: Optional, bias: Optional, dtype: str) -> np.ndarray:
    w, b = (None if v is None else v[:, None] for v in (weight, bias))
    with np.errstate(all="ignore"):
        return formats.rounded(affine((x - mean[:, None]) * r[:, None], w, b), dtype)


def _inverse(running: Running, eps: float) -> np.ndarray:
    wide = running.var.dtype.type
    with np.errstate(all="ignore"):
        return wide(1) / np.sqrt(running.var + wide(eps))


def _updated(running: Running, mean: np.ndarray, squares: np.ndarray, count: int, momentum: float) -> Running:
    """Each running statistic moved towards the batch's; the variance is the unbiased one."""
    wide = mean.dtype.type
    keep, take = wide(1 - momentum), wide(momentum)
    with np.errstate(all="ignore"):
        var = squares / wide(count - 1)
        return Running(keep * running.mean + take * mean, keep * running.var + take * var)
