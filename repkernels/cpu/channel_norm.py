"""Pieces of batch_norm and group_norm on the CPU: what happens along rows that have one statistic or one channel each.

All arrays are contiguous fp32 or fp64: rows (R, n), and vectors (R,), where an absent one is empty.
"""

import numpy as np

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.row_norm import statistics_of
from repkernels.cpu.rows import blocks_of, row_sum
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import LANES
from repkernels.subnormals import subnormals_kept


def statistics(rows: np.ndarray, eps: float) -> np.ndarray:
    """(3, R): mean, SUM of squared deviations and div_rn(1, sqrt_rn(variance + eps)) of each row."""
    out = np.empty((3, len(rows)), rows.dtype)
    with subnormals_kept():
        scalars = np.array([eps], rows.dtype)
    spread(_statistics, len(rows), rows.size, rows, scalars, out)
    return out


def apply(rows: np.ndarray, mean: np.ndarray, inverse: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """((x - mean) * inverse) * weight + bias of each row."""
    y = np.empty_like(rows)
    spread(_apply, len(rows), rows.size, rows, mean, inverse, weight, bias, y)
    return y


def sums(grad: np.ndarray, rows: np.ndarray, mean: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """(2, R): the SUM of grad * xhat and that of grad along each row."""
    out = np.empty((2, len(rows)), rows.dtype)
    spread(_sums, len(rows), rows.size, grad, rows, mean, inverse, out)
    return out


def gradient(
    grad: np.ndarray,
    rows: np.ndarray,
    mean: np.ndarray,
    inverse: np.ndarray,
    weight: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    scale: np.ndarray,
) -> np.ndarray:
    """scale * ((grad * weight - b) - xhat * a) of each row; scale * grad where a is empty."""
    dx = np.empty_like(rows)
    spread(_gradient, len(rows), rows.size, grad, rows, mean, inverse, weight, a, b, scale, dx)
    return dx


@kernel
def _statistics(start, stop, rows, scalars, out):
    state = keep_subnormals()
    terms, lanes = np.empty(rows.shape[1], rows.dtype), np.empty(LANES, rows.dtype)
    blocks = np.empty(blocks_of(rows.shape[1]), rows.dtype)
    for i in range(start, stop):
        out[0, i], out[1, i], out[2, i] = statistics_of(rows[i], scalars[0], True, terms, lanes, blocks)
    restore(state)


@kernel
def _apply(start, stop, rows, mean, inverse, weight, bias, y):
    state = keep_subnormals()
    for i in range(start, stop):
        row, out, m, r = rows[i], y[i], mean[i], inverse[i]
        for j in range(row.size):
            out[j] = (row[j] - m) * r
        if weight.size:
            for j in range(row.size):
                out[j] *= weight[i]
        if bias.size:
            for j in range(row.size):
                out[j] += bias[i]
    restore(state)


@kernel
def _sums(start, stop, grad, rows, mean, inverse, out):
    state = keep_subnormals()
    terms, lanes = np.empty(rows.shape[1], rows.dtype), np.empty(LANES, rows.dtype)
    blocks = np.empty(blocks_of(rows.shape[1]), rows.dtype)
    for i in range(start, stop):
        g, row, m, r = grad[i], rows[i], mean[i], inverse[i]
        for j in range(row.size):
            terms[j] = g[j] * ((row[j] - m) * r)
        out[0, i] = row_sum(terms, lanes, blocks)
        out[1, i] = row_sum(g, lanes, blocks)
    restore(state)


@kernel
def _gradient(start, stop, grad, rows, mean, inverse, weight, a, b, scale, dx):
    state = keep_subnormals()
    for i in range(start, stop):
        row, out, m, r, s = rows[i], dx[i], mean[i], inverse[i], scale[i]
        for j in range(row.size):
            out[j] = grad[i, j]
        if weight.size:
            for j in range(row.size):
                out[j] *= weight[i]
        if a.size:
            for j in range(row.size):
                out[j] = (out[j] - b[i]) - ((row[j] - m) * r) * a[i]
        for j in range(row.size):
            out[j] *= s
    restore(state)
