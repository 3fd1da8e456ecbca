"""layer_norm and rms_norm of rows on the CPU (SPEC.md, sections of these names): rms_norm is the case of mean +0.

x - (+0) is x for every x, so that one kernel serves both. Arrays are contiguous fp32 or fp64; an absent one is empty.
"""

import numpy as np
from numba import njit
from torch import Tensor, dtype, from_numpy

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rows import blocks_of, row_sum
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import BLOCK, LANES, WIDTH, sum_rows
from repkernels.cpu.wide import narrow, widen
from repkernels.subnormals import subnormals_kept


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out_dtype: dtype,
    centred: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """x (R, C) -> y (R, C) in `out_dtype`, x + residual in x's dtype, mean (R,) and r (R,) in the computing format.

    mean is empty unless `centred`.
    """
    wide, total = widen(x), None
    if residual is not None:
        added = np.empty_like(wide)
        spread(_add, wide.size, wide.size, wide.reshape(-1), widen(residual).reshape(-1), added.reshape(-1))
        total = narrow(added, x.dtype)
        wide = widen(total)
    y = np.empty_like(wide)
    mean, inverse = np.empty(len(wide), wide.dtype), np.empty(len(wide), wide.dtype)
    affine = (optional(weight, wide.dtype), optional(bias, wide.dtype))
    with subnormals_kept():
        scalars = np.array([eps], wide.dtype)
    spread(_forward, len(wide), wide.size, wide, *affine, scalars, centred, y, mean, inverse)
    return narrow(y, out_dtype), total, from_numpy(mean if centred else mean[:0].copy()), from_numpy(inverse)


def backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    extra: Tensor | None,
    parameters: bool,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: of x (R, C) in its dtype, of weight and bias (C,) in the computing format, empty unless `parameters`,
    and the latter unless `centred`.

    mean and inverse come from `forward`. extra: a gradient of x + residual, added to the first after its rounding.
    """
    wide, upstream = widen(x), widen(grad)
    r = inverse.numpy()
    statistics = (mean.numpy() if centred else np.zeros_like(r), r)
    dx = np.empty_like(wide)
    w = optional(weight, wide.dtype)
    spread(_backward, len(wide), wide.size, upstream, wide, *statistics, w, centred, dx)
    result = narrow(dx, x.dtype)
    if extra is not None:
        first = widen(result)
        spread(_add, first.size, first.size, first.reshape(-1), widen(extra).reshape(-1), dx.reshape(-1))
        result = narrow(dx, x.dtype)
    if not parameters:
        return result, inverse.new_empty(0), inverse.new_empty(0)
    rows, columns = wide.shape
    blocks = blocks_of(rows)
    sums = np.empty((2, blocks, columns), wide.dtype)
    pieces = blocks * -(-columns // WIDTH)
    spread(_parameters, pieces, 2 * wide.size, upstream, wide, *statistics, sums)
    dw, db = (sum_rows(from_numpy(s)) for s in sums)
    return result, dw, db if centred else db.new_empty(0)


def optional(v: Tensor | None, wide: np.dtype) -> np.ndarray:
    """A weight or bias widened; an empty array for None."""
    return np.empty(0, wide) if v is None else widen(v).astype(wide, copy=False)


@njit
def statistics_of(row, eps, centred, terms, lanes, sums):
    """Mean (+0 unless centred), SUM of squared deviations, and div_rn(1, sqrt_rn(.)) of a row."""
    one, n = row.dtype.type(1), row.dtype.type(row.size)
    mean = row.dtype.type(0)
    if centred:
        mean = row_sum(row, lanes, sums) / n
    for j in range(row.size):
        d = row[j] - mean
        terms[j] = d * d
    squares = row_sum(terms, lanes, sums)
    return mean, squares, one / np.sqrt(squares / n + eps)


@kernel
def _add(start, stop, a, b, out):
    state = keep_subnormals()
    for i in range(start, stop):
        out[i] = a[i] + b[i]
    restore(state)


@kernel
def _forward(start, stop, x, weight, bias, scalars, centred, y, mean, inverse):
    state = keep_subnormals()
    columns = x.shape[1]
    terms, lanes = np.empty(columns, x.dtype), np.empty(LANES, x.dtype)
    sums = np.empty(blocks_of(columns), x.dtype)
    for i in range(start, stop):
        row, out = x[i], y[i]
        m, _, r = statistics_of(row, scalars[0], centred, terms, lanes, sums)
        mean[i], inverse[i] = m, r
        for j in range(columns):
            out[j] = (row[j] - m) * r
        if weight.size:
            for j in range(columns):
                out[j] *= weight[j]
        if bias.size:
            for j in range(columns):
                out[j] += bias[j]
    restore(state)


@kernel
def _backward(start, stop, grad, x, mean, inverse, weight, centred, dx):
    state = keep_subnormals()
    columns = x.shape[1]
    g, terms, lanes = np.empty(columns, x.dtype), np.empty(columns, x.dtype), np.empty(LANES, x.dtype)
    sums = np.empty(blocks_of(columns), x.dtype)
    n = x.dtype.type(columns)
    for i in range(start, stop):
        row, out, m, r = x[i], dx[i], mean[i], inverse[i]
        for j in range(columns):
            g[j] = grad[i, j]
        if weight.size:
            for j in range(columns):
                g[j] *= weight[j]
        for j in range(columns):
            terms[j] = g[j] * ((row[j] - m) * r)
        a, b = row_sum(terms, lanes, sums) / n, x.dtype.type(0)
        if centred:
            b = row_sum(g, lanes, sums) / n
        for j in range(columns):
            out[j] = r * ((g[j] - b) - ((row[j] - m) * r) * a)
    restore(state)


@kernel
def _parameters(start, stop, grad, x, mean, inverse, sums):
    """sums[0], sums[1] (block, column): SUMs over a block's rows of grad * xhat, and of grad."""
    state = keep_subnormals()
    products, plain = np.empty((LANES, WIDTH), x.dtype), np.empty((LANES, WIDTH), x.dtype)
    rows, columns = x.shape
    tiles = -(-columns // WIDTH)
    for piece in range(start, stop):
        block, left = piece // tiles, piece % tiles * WIDTH
        top, bottom = block * BLOCK, min((block + 1) * BLOCK, rows)
        width = min(WIDTH, columns - left)
        for row in range(top, bottom):
            g, v, m, r = grad[row, left : left + width], x[row, left : left + width], mean[row], inverse[row]
            p, q = products[row % LANES, :width], plain[row % LANES, :width]
            if row < top + LANES:
                for c in range(width):
                    p[c] = g[c] * ((v[c] - m) * r)
                    q[c] = g[c]
            else:
                for c in range(width):
                    p[c] += g[c] * ((v[c] - m) * r)
                    q[c] += g[c]
        _halve(products, bottom - top, sums[0, block, left : left + width])
        _halve(plain, bottom - top, sums[1, block, left : left + width])
    restore(state)


@njit
def _halve(lanes, count, out):
    """The sum of the first `count` lanes (at most all) of each column by halvings; +0 of none."""
    n, half = min(count, LANES), LANES // 2
    while half:
        for j in range(n - half):
            for c in range(out.size):
                lanes[j, c] += lanes[j + half, c]
        n, half = min(n, half), half // 2
    for c in range(out.size):
        out[c] = lanes[0, c] if count else 0.0
