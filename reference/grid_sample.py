"""grid_sample, SPEC.md, section of this name: one position after the other."""

import itertools
import math
from typing import Any

import numpy as np

from reference import formats
from reference.fma import fma32, fma64
from reference.sum import tree

Tap = tuple[int, Any, Any]


def _fma(a: Any, b: Any, c: Any) -> Any:
    return np.float64(fma64(float(a), float(b), float(c))) if isinstance(c, np.float64) else np.float32(fma32(a, b, c))


def _chain(pairs: list[tuple[Any, Any]], wide: Any) -> Any:
    if not pairs:
        return wide(0)
    total = wide(pairs[0][0] * pairs[0][1])
    for a, b in pairs[1:]:
        total = _fma(a, b, total)
    return total


def _coordinate(g: Any, n: int, padding: str, align: bool, cubic: bool, wide: Any) -> tuple[Any, Any]:
    """(u, f)."""
    one, half, size = wide(1), wide(0.5), wide(n)
    u = ((g + one) * half) * (size - one) if align else ((g + one) * size - one) * half
    f = (size - one) * half if align else size * half
    if not cubic and padding == "reflection":
        u = u if abs(u) < 2**30 else wide(-100)
        low, span = (0.0, n - 1) if align else (0.5, n)
        d = float(u) + low
        s = -1 if d < 0 else 1
        d = abs(d)
        if span == 0:
            u, f = wide(0), wide(0)
        else:
            k = math.trunc(d / span)
            r = fma64(-float(k), float(span), d)
            if k % 2:
                r, s = span - r, -s
            u, f = wide(r - low), f * wide(s)
    if not cubic and padding != "zeros":
        f = f if 0 < u < n - 1 else wide(0)
        u = u if u > 0 else wide(0)
        u = u if u < n - 1 else size - one
    return (u if abs(u) < 2**30 else wide(-100)), f


def _moved(j: int, n: int, padding: str, align: bool) -> int:
    if padding == "border":
        return min(max(j, 0), n - 1)
    if padding == "reflection":
        period = max(2 * (n - 1), 1) if align else 2 * n
        m = j % period
        return m if m < n else (period if align else period - 1) - m
    return j


def _axis(u: Any, n: int, mode: str, padding: str, align: bool, wide: Any) -> list[Tap]:
    i = math.floor(u)
    p = u - wide(i)
    one = wide(1)
    if mode == "nearest":
        return [(i + int(p > 0.5 or (p == 0.5 and i % 2 == 1)), one, wide(0))]
    if mode == "bilinear":
        return [(i, wide(i + 1) - u, -one), (i + 1, p, one)]

    def near(x: Any) -> Any:
        return ((wide(1.25) * x - wide(2.25)) * x) * x + one

    def far(x: Any) -> Any:
        return ((wide(-0.75) * x + wide(3.75)) * x - wide(6)) * x + wide(3)

    def near_slope(x: Any) -> Any:
        return (wide(3.75) * x - wide(4.5)) * x

    def far_slope(x: Any) -> Any:
        return (wide(-2.25) * x + wide(7.5)) * x - wide(6)

    q = one - p
    found = [
        (i - 1, far(p + one), far_slope(p + one)), (i, near(p), near_slope(p)), (i + 1, near(q), -near_slope(q)),
        (i + 2, far(q + one), -far_slope(q + one)),
    ]  # fmt: skip
    return [(_moved(j, n, padding, align), w, d) for j, w, d in found]


def _product(factors: list[Any]) -> Any:
    """Of the axes' factors, the last axis's first."""
    total = factors[-1]
    for factor in reversed(factors[:-1]):
        total = total * factor
    return total


def grid_sample(
    x: np.ndarray, grid: np.ndarray, g: np.ndarray, dtype: str, mode: str, padding: str, align: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result, and the gradients of x and of the grid for the gradient g of the result."""
    wide: Any = formats.compute_type(dtype)
    x, grid, g = (np.asarray(v, wide) for v in (x, grid, g))
    sizes, axes = x.shape[2:], x.ndim - 2
    out, of_grid = np.zeros(g.shape, wide), np.zeros(grid.shape, wide)
    by_place = np.moveaxis(x, 1, -1)
    terms: dict[tuple[int, ...], list[np.ndarray]] = {}
    with np.errstate(all="ignore"):
        for where in np.ndindex(*grid.shape[:-1]):
            sample: int = where[0]
            here: Any = (where[0], slice(None), *where[1:])
            pairs = [
                _coordinate(grid[where][axes - 1 - d], sizes[d], padding, align, mode == "bicubic", wide)
                for d in range(axes)
            ]
            lines = [_axis(pairs[d][0], sizes[d], mode, padding, align, wide) for d in range(axes)]
            taps = [t for t in itertools.product(*lines) if all(0 <= t[d][0] < sizes[d] for d in range(axes))]
            places = [tuple(axis[0] for axis in t) for t in taps]
            weights = [_product([axis[1] for axis in t]) for t in taps]
            rows = [by_place[(sample, *place)] for place in places]
            for c in range(x.shape[1]):
                out[here][c] = _chain([(w, row[c]) for w, row in zip(weights, rows, strict=True)], wide)
            for place, w in zip(places, weights, strict=True):
                terms.setdefault((sample, *place), []).append(g[here] * w)
            if mode == "nearest":
                continue
            dots = [_chain(list(zip(g[here], row, strict=True)), wide) for row in rows]
            for d in range(axes):
                slopes = [_product([axis[2 if e == d else 1] for e, axis in enumerate(t)]) for t in taps]
                total, f = _chain(list(zip(slopes, dots, strict=True)), wide), pairs[d][1]
                of_grid[where][axes - 1 - d] = total * f if taps and f != 0 else 0
        sums = np.zeros(by_place.shape, wide)
        for key, sent in terms.items():
            sums[key] = tree(np.stack(sent))
        of_x = np.moveaxis(sums, -1, 1)
    return formats.rounded(out, dtype), formats.rounded(of_x, dtype), formats.rounded(of_grid, dtype)


def affine_base(sizes: list[int], align: bool, dtype: str) -> np.ndarray:
    """The rows (x, y, ..., 1), (P, A + 1)."""
    rows = []
    for place in np.ndindex(*sizes):
        line = [(2 * i - (n - 1)) / (max(n - 1, 1) if align else n) for i, n in zip(place, sizes, strict=True)]
        rows.append([*reversed(line), 1.0])
    base = np.array(rows)
    return formats.rounded(base if dtype == "float64" else base.astype(np.float32), dtype)
