"""group_norm on the CPU (SPEC.md, "group_norm")."""

import numpy as np
import torch
from torch import Tensor, from_numpy

from repkernels.cpu import channel_norm
from repkernels.cpu.row_norm import optional
from repkernels.cpu.sum import sum_rows
from repkernels.cpu.wide import narrow, widen
from repkernels.subnormals import subnormals_kept


def forward(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """x (N, C, S), not empty -> y (N, C, S) in `out_dtype`, mean (N * groups,) and r in the computing format."""
    wide = widen(x)
    samples, channels, size = wide.shape
    mean, _, inverse = channel_norm.statistics(wide.reshape(samples * groups, -1), eps)
    rows = wide.reshape(samples * channels, size)
    w, b = (np.tile(optional(v, wide.dtype), samples) for v in (weight, bias))
    each_mean, each_inverse = (_each(v, channels // groups) for v in (mean, inverse))
    y = channel_norm.apply(rows, each_mean, each_inverse, w, b)
    return narrow(y.reshape(wide.shape), out_dtype), from_numpy(mean), from_numpy(inverse)


def backward(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, groups: int, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: of x (N, C, S) in its dtype, of weight and bias (C,) in the computing format."""
    wide = widen(x)
    samples, channels, size = wide.shape
    per_group = channels // groups
    g, rows = widen(grad).reshape(-1, size), wide.reshape(-1, size)
    m, r = (_each(v.numpy(), per_group) for v in (mean, inverse))
    products, plain = channel_norm.sums(g, rows, m, r)
    w = np.tile(optional(weight, wide.dtype), samples)
    count = wide.dtype.type(per_group * size)
    with subnormals_kept(), np.errstate(all="ignore"):
        weighted = (s * w if w.size else s for s in (products, plain))
        groupwise = (sum_rows(from_numpy(s.reshape(-1, per_group).T)).numpy() / count for s in weighted)
        a, b = (_each(v, per_group) for v in groupwise)
    dx = channel_norm.gradient(g, rows, m, r, w, a, b, r)
    dw, db = (sum_rows(from_numpy(s.reshape(samples, channels))) for s in (products, plain))
    return narrow(dx.reshape(wide.shape), x.dtype), dw, db


def _each(v: np.ndarray, channels: int) -> np.ndarray:
    """A number for each group as one for each of its channels."""
    return np.repeat(v, channels)
