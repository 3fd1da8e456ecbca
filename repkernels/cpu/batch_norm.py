"""batch_norm on the CPU (SPEC.md, "batch_norm"): each channel's terms as one row."""

import numpy as np
from torch import Tensor, from_numpy

from repkernels.cpu import channel_norm
from repkernels.cpu.row_norm import optional
from repkernels.cpu.wide import narrow, widen
from repkernels.subnormals import subnormals_kept


def training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (N, C, S) or (N, C), not empty -> y like x, mean (C,), r (C,), and the new running statistics in their dtypes.

    mean and r in the computing format. The running statistics are both given, (C,), or both None and then empty.
    """
    rows = _rows(widen(x))
    wide = rows.dtype.type
    mean, squares, inverse = channel_norm.statistics(rows, eps)
    y = channel_norm.apply(rows, mean, inverse, optional(weight, rows.dtype), optional(bias, rows.dtype))
    new_mean, new_var = (from_numpy(np.empty(0, wide)) for _ in range(2))
    if running_mean is not None and running_var is not None:
        keep, take = wide(1 - momentum), wide(momentum)
        with subnormals_kept(), np.errstate(all="ignore"):
            var = squares / wide(rows.shape[1] - 1)
            moved = (keep * optional(v, rows.dtype) + take * s for v, s in ((running_mean, mean), (running_var, var)))
            new_mean, new_var = (
                narrow(v, old.dtype) for v, old in zip(moved, (running_mean, running_var), strict=True)
            )
    return _tensor(y, x), from_numpy(mean), from_numpy(inverse), new_mean, new_var


def evaluation(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x (N, C, S) or (N, C) -> y like x, mean (C,) and r (C,) in the computing format."""
    rows = _rows(widen(x))
    wide = rows.dtype.type
    mean = optional(running_mean, rows.dtype).copy()
    with subnormals_kept(), np.errstate(all="ignore"):
        inverse = wide(1) / np.sqrt(optional(running_var, rows.dtype) + wide(eps))
    y = channel_norm.apply(rows, mean, inverse, optional(weight, rows.dtype), optional(bias, rows.dtype))
    return _tensor(y, x), from_numpy(mean), from_numpy(inverse)


def backward(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, trained: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: of x in its dtype, of weight and bias (C,) in the computing format. trained: of `training`."""
    g, rows = _rows(widen(grad)), _rows(widen(x))
    m, r = mean.numpy(), inverse.numpy()
    products, plain = channel_norm.sums(g, rows, m, r)
    a = b = none = np.empty(0, rows.dtype)
    with subnormals_kept(), np.errstate(all="ignore"):
        scale = r if weight is None else optional(weight, rows.dtype) * r
        if trained:
            count = rows.dtype.type(rows.shape[1])
            a, b = products / count, plain / count
    dx = channel_norm.gradient(g, rows, m, r, none, a, b, scale)
    return _tensor(dx, x), from_numpy(products), from_numpy(plain)


def _rows(wide: np.ndarray) -> np.ndarray:
    """(N, C, S) or (N, C) as (C, N * S)."""
    return np.ascontiguousarray(np.moveaxis(wide, 1, 0)).reshape(wide.shape[1], -1)


def _tensor(rows: np.ndarray, x: Tensor) -> Tensor:
    """The inverse of `_rows`, in x's shape and dtype."""
    moved = rows.reshape(x.shape[1], x.shape[0], *x.shape[2:])
    return narrow(np.ascontiguousarray(np.moveaxis(moved, 0, 1)), x.dtype)
