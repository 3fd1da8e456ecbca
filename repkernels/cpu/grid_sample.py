"""grid_sample on the CPU (SPEC.md, "grid_sample"): the functions of kernels/grid_sample.py, by the same steps."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F64, fma, numbers
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import narrow, widen

ZEROS, BORDER, REFLECTION = range(3)
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION}
FAR = 1 << 30


@njit
def _floor(u):
    i = np.int64(u)
    return i - 1 if type(u)(i) > u else i


@njit
def _place(g, n, align, padding, cubic):
    """(u, slope)."""
    wide = type(g)
    size = wide(n)
    if align:
        u = (g + wide(1)) * wide(0.5) * (size - wide(1))
        slope = (size - wide(1)) * wide(0.5)
    else:
        u = ((g + wide(1)) * size - wide(1)) * wide(0.5)
        slope = size * wide(0.5)
    if not cubic and padding != ZEROS:
        if padding == REFLECTION:
            if not abs(u) < FAR:
                u = wide(-100)
            low = 0.0 if align else 0.5
            span = F64(n - 1) if align else F64(n)
            d = F64(u) + low
            sign = -1 if d < 0.0 else 1
            d = abs(d)
            if span == 0.0:
                u, sign = wide(0), 0
            else:
                flips = np.int64(d / span)
                rest = fma(-F64(flips), span, d)
                if flips % 2 == 1:
                    rest, sign = span - rest, -sign
                u = wide(rest - low)
            slope = slope * wide(sign)
        if not (u > wide(0) and u < size - wide(1)):
            slope = wide(0)
        if not u > wide(0):
            u = wide(0)
        if not u < size - wide(1):
            u = size - wide(1)
    if not abs(u) < FAR:
        u = wide(-100)
    return u, slope


@njit
def _near(x):
    wide = type(x)
    return (x * wide(1.25) - wide(2.25)) * x * x + wide(1)


@njit
def _far(x):
    wide = type(x)
    return ((x * wide(-0.75) + wide(3.75)) * x - wide(6)) * x + wide(3)


@njit
def _near_slope(x):
    wide = type(x)
    return (x * wide(3.75) - wide(4.5)) * x


@njit
def _far_slope(x):
    wide = type(x)
    return (x * wide(-2.25) + wide(7.5)) * x - wide(6)


@njit
def _axis(u, n, mode, padding, align, at, weight, slope):
    """Fills the positions (-1 outside), weights and slopes of the taps along one axis."""
    wide = type(u)
    i = _floor(u)
    p = u - wide(i)
    if mode == 1:
        if p > wide(0.5) or (p == wide(0.5) and i % 2 != 0):
            i += 1
        at[0], weight[0], slope[0] = i, 1, 0
    elif mode == 2:
        at[0], weight[0], slope[0] = i, wide(i + 1) - u, -1
        at[1], weight[1], slope[1] = i + 1, p, 1
    else:
        q = wide(1) - p
        weight[0], weight[1], weight[2], weight[3] = _far(p + wide(1)), _near(p), _near(q), _far(q + wide(1))
        slope[0], slope[1] = _far_slope(p + wide(1)), _near_slope(p)
        slope[2], slope[3] = -_near_slope(q), -_far_slope(q + wide(1))
        for k in range(4):
            j = i + k - 1
            if padding == BORDER:
                j = min(max(j, 0), n - 1)
            elif padding == REFLECTION:
                period = max(2 * (n - 1), 1) if align else 2 * n
                j %= period
                if j >= n:
                    j = (period if align else period - 1) - j
            at[k] = j
    for k in range(mode):
        if not 0 <= at[k] < n:
            at[k] = -1


@kernel
def _taps(start, stop, grid, sizes, mode, padding, align, index, weight, slopes, factors):
    state = keep_subnormals()
    axes = grid.shape[1]
    taps = weight.shape[1]
    at = np.empty((3, 4), np.int64)
    w, d = np.empty((3, 4), grid.dtype), np.empty((3, 4), grid.dtype)
    at[2, 0], w[2, 0], d[2, 0] = 0, 1, 0
    for e in range(start, stop):
        for a in range(axes):
            n = sizes[axes - 1 - a]
            u, factor = _place(grid[e, a], n, align, padding, mode == 4)
            _axis(u, n, mode, padding, align, at[a], w[a], d[a])
            if factors.shape[0]:
                factors[e, a] = factor
        for t in range(taps):
            i, j, k = t % mode, t // mode % mode, t // (mode * mode)
            place = np.int64(-1)
            if at[0, i] >= 0 and at[1, j] >= 0 and at[2, k] >= 0:
                place = at[0, i] + at[1, j] * sizes[axes - 1]
                if axes == 3:
                    place += at[2, k] * sizes[1] * sizes[2]
            index[e, t] = place
            both = w[0, i] * w[1, j]
            weight[e, t] = both * w[2, k] if axes == 3 else both
            if slopes.shape[0]:
                dx, dy = d[0, i] * w[1, j], w[0, i] * d[1, j]
                if axes == 3:
                    slopes[e, t, 0], slopes[e, t, 1] = dx * w[2, k], dy * w[2, k]
                    slopes[e, t, 2] = both * d[2, k]
                else:
                    slopes[e, t, 0], slopes[e, t, 1] = dx, dy
    restore(state)


def taps(
    grid: Tensor,
    index: Tensor,
    weight: Tensor,
    slopes: Tensor | None,
    factors: Tensor | None,
    sizes: tuple[int, ...],
    mode: int,
    padding: str,
    align: bool,
) -> None:
    """The taps of each position of grid (M, A), contiguous: index (M, T) int32 into x's places or -1, weight (M, T).

    T = mode^A, the first axis of x outermost. slopes (M, T, A): each weight's derivatives by the coordinates; factors
    (M, A): the coordinates' by the grid. All but index in the format of computation.
    """
    empty = weight.new_empty(0, 1, 1).numpy()
    results = index.numpy(), weight.numpy(), empty if slopes is None else slopes.numpy()
    last = empty[0:0, 0] if factors is None else factors.numpy()
    lengths = np.array(sizes, np.int64)
    spread(
        _taps, grid.shape[0], weight.numel() * 8, widen(grid), lengths, mode, PADDINGS[padding], align, *results, last
    )


@kernel
def _gather(start, stop, x, index, weight, out):
    state = keep_subnormals()
    channels, positions = out.shape[1], out.shape[2]
    taps = index.shape[1]
    for row in range(start, stop):
        n, c = row // channels, row % channels
        for p in range(positions):
            e = n * positions + p
            total = out.dtype.type(0)
            first = True
            for t in range(taps):
                i = index[e, t]
                if i >= 0:
                    w, v = weight[e, t], x[n, c, i]
                    total = w * v if first else fma(w, v, total)
                    first = False
            out[n, c, p] = total
    restore(state)


def gather(x: Tensor, index: Tensor, weight: Tensor, out: Tensor) -> None:
    """out (N, C, P) from x (N, C, S), any strides, by the taps of each position (N * P, T)."""
    result = np.empty(tuple(out.shape), np.float64 if x.dtype == torch.float64 else np.float32)
    rows = out.shape[0] * out.shape[1]
    spread(_gather, rows, result.size * index.shape[1], widen(x), index.numpy(), weight.numpy(), result)
    out.copy_(narrow(result, out.dtype))


@kernel
def _grid_gradient(start, stop, g, x, index, slopes, factors, out):
    state = keep_subnormals()
    positions, channels = g.shape[2], g.shape[1]
    taps, axes = index.shape[1], out.shape[1]
    sums = np.empty(axes, out.dtype)
    for e in range(start, stop):
        n, p = e // positions, e % positions
        found = False
        for t in range(taps):
            i = index[e, t]
            if i < 0:
                continue
            product = g[n, 0, p] * x[n, 0, i]
            for c in range(1, channels):
                product = fma(g[n, c, p], x[n, c, i], product)
            for a in range(axes):
                sums[a] = fma(slopes[e, t, a], product, sums[a]) if found else slopes[e, t, a] * product
            found = True
        for a in range(axes):
            factor = factors[e, a]
            out[e, a] = sums[a] * factor if found and factor != 0 else 0
    restore(state)


def grid_gradient(g: Tensor, x: Tensor, index: Tensor, slopes: Tensor, factors: Tensor, out: Tensor) -> None:
    """out (N * P, A), contiguous, from g (N, C, P), x (N, C, S), any strides, and what `taps` gives."""
    result = np.empty(tuple(out.shape), np.float64 if x.dtype == torch.float64 else np.float32)
    work = slopes.numel() * g.shape[1]
    arrays = widen(g), widen(x), index.numpy(), slopes.numpy(), factors.numpy(), result
    spread(_grid_gradient, out.shape[0], work, *arrays)
    numbers(out)[...] = numbers(narrow(result, out.dtype))
