"""Linear maps along axes, SPEC.md, "Resampling": each output as a chain over its taps, the last axis first."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reference import formats
from reference.fma import fma32, fma64

Taps = list[list[tuple[int, float]]]


def _chain(weights: list[float], rows: list[np.ndarray], wide: Any) -> np.ndarray:
    w = [wide(v) for v in weights]
    total: np.ndarray = np.asarray(w[0] * rows[0], wide)
    for a, row in zip(w[1:], rows[1:], strict=True):
        if wide is np.float32:
            total = fma32(a, row, total)
        else:
            flat = [fma64(float(a), float(x), float(t)) for x, t in zip(row.ravel(), total.ravel(), strict=True)]
            total = np.array(flat).reshape(total.shape)
    return total


def along(x: np.ndarray, axis: int, taps: Taps, wide: Any) -> np.ndarray:
    """One axis of x by its taps."""
    moved: np.ndarray = np.moveaxis(np.asarray(x, wide), axis, 0)
    out = np.zeros((len(taps), *moved.shape[1:]), wide)
    with np.errstate(all="ignore"):
        for o, pairs in enumerate(taps):
            if pairs:
                out[o] = _chain([w for _, w in pairs], [moved[i] for i, _ in pairs], wide)
    return np.moveaxis(out, 0, axis)


def transposed(taps: Taps, inputs: int) -> Taps:
    """For each input the outputs that read it."""
    found: Taps = [[] for _ in range(inputs)]
    for o, pairs in enumerate(taps):
        for i, w in pairs:
            found[i].append((o, w))
    return found


def apply(x: np.ndarray, axes: Sequence[Taps], dtype: str) -> np.ndarray:
    """x (N, C, sizes...) with the taps of its last axes."""
    wide: Any = formats.compute_type(dtype)
    for d in reversed(range(len(axes))):
        x = along(x, x.ndim - len(axes) + d, axes[d], wide)
    return formats.rounded(x, dtype)


def both(x: np.ndarray, g: np.ndarray, axes: Sequence[Taps], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The map of x, and the gradient of x for that of the result, g."""
    backward = [transposed(taps, n) for taps, n in zip(axes, x.shape[-len(axes) :], strict=True)]
    return apply(x, axes, dtype), apply(g, backward, dtype)


def pad_taps(mode: str, n: int, left: int, right: int) -> Taps:
    found: Taps = []
    for o in range(n + left + right):
        j = o - left
        if mode == "reflect":
            j = -j if j < 0 else 2 * (n - 1) - j if j >= n else j
        elif mode == "replicate":
            j = min(max(j, 0), n - 1)
        else:
            f, last = max(-left, 0), n - max(-right, 0)
            j = f + (j - f) % (last - f)
        found.append([(j, 1.0)])
    return found


def pad(x: np.ndarray, g: np.ndarray, pads: Sequence[int], mode: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """pads as torch takes them: the last axis first."""
    count = len(pads) // 2
    sides = [(pads[2 * d], pads[2 * d + 1]) for d in reversed(range(count))]
    return both(x, g, [pad_taps(mode, n, *side) for n, side in zip(x.shape[-count:], sides, strict=True)], dtype)


def _n(x: float, a: float) -> float:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _f(x: float, a: float) -> float:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def interpolate_taps(mode: str, n: int, m: int, factor: float | None, align: bool, antialias: bool) -> Taps:
    """The taps of one axis; factor: the scale factor, where it is used as such."""
    found: Taps = []
    s = ((n - 1) / (m - 1) if m > 1 else 0.0) if align else 1 / factor if factor else n / m
    for o in range(m):
        if mode.startswith("nearest"):
            h = 0.5 if mode == "nearest-exact" else 0.0
            s32 = np.float32(1 / factor) if factor else np.float32(n) / np.float32(m)
            found.append([(min(math.floor(np.float32(float(s32) * (o + h))), n - 1), 1.0)])
        elif antialias:
            found.append(_antialias(mode, n, o, s))
        else:
            u = s * o if align else s * (o + 0.5) - 0.5
            if mode == "bicubic":
                i = math.floor(u)
                t = u - i
                v = 1 - t
                weights = _f(t + 1, -0.75), _n(t, -0.75), _n(v, -0.75), _f(v + 1, -0.75)
                found.append([(min(max(i + k - 1, 0), n - 1), w) for k, w in enumerate(weights)])
            else:
                u = max(u, 0.0)
                i = min(math.floor(u), n - 1)
                p = min(u - i, 1.0)
                found.append([(i, 1 - p), (min(i + 1, n - 1), p)])
    return found


def _antialias(mode: str, n: int, o: int, s: float) -> list[tuple[int, float]]:
    def f(x: float) -> float:
        x = abs(x)
        if mode == "bilinear":
            return 1 - x if x < 1 else 0.0
        return _n(x, -0.5) if x < 1 else _f(x, -0.5) if x < 2 else 0.0

    r = 1 if mode == "bilinear" else 2
    support, k = (r * s, 1 / s) if s >= 1 else (float(r), 1.0)
    c = (o + 0.5) * s
    first, last = max(math.trunc(c - support + 0.5), 0), min(math.trunc(c + support + 0.5), n)
    last = min(last, first + 2 * math.ceil(support) + 1)
    weights = [f((i - c + 0.5) * k) for i in range(first, last)]
    total = 0.0
    for w in weights:
        total += w
    return [(first + j, w / total if total else w) for j, w in enumerate(weights)]


def interpolate(
    x: np.ndarray, g: np.ndarray, mode: str, dtype: str, factors: Sequence[float | None], **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """g has the size of the result. factors: None for an axis whose scale is that of the sizes."""
    align, antialias = options.get("align_corners", False), options.get("antialias", False)
    axes = [
        interpolate_taps(mode, n, m, factor, align, antialias)
        for n, m, factor in zip(x.shape[2:], g.shape[2:], factors, strict=True)
    ]
    return both(x, g, axes, dtype)


def unfold(
    x: np.ndarray,
    g: np.ndarray,
    kernel: Sequence[int],
    dtype: str,
    dilation: int = 1,
    padding: int = 0,
    stride: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """x (N, C, H, W), g (N, C * kh * kw, L) -> the unfolded x, and g folded."""
    axes, blocks = [], []
    for n, k in zip(x.shape[2:], kernel, strict=True):
        count = (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        places = [l * stride + t * dilation - padding for t in range(k) for l in range(count)]
        axes.append([[(j, 1.0)] if 0 <= j < n else [] for j in places])
        blocks.append(count)
    samples, channels = x.shape[:2]
    split = (samples, channels, kernel[0], blocks[0], kernel[1], blocks[1])
    grouped = g.reshape(samples, channels, kernel[0], kernel[1], *blocks).transpose(0, 1, 2, 4, 3, 5)
    joined = grouped.reshape(samples, channels, kernel[0] * blocks[0], kernel[1] * blocks[1])
    columns, image = both(x, joined, axes, dtype)
    return columns.reshape(split).transpose(0, 1, 2, 4, 3, 5).reshape(g.shape), image
