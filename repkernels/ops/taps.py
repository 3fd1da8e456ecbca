"""Along one axis, which input positions an output position reads and with what weights (SPEC.md, "Resampling").

A table is (starts (m + 1,), positions (K,), weight (K,)): output o takes its taps starts[o] ..
starts[o + 1] - 1 in order. Coordinates are computed here, once and on the host, so that no device has a say in them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Table(NamedTuple):
    """The taps of `m` outputs; every one has `uniform` of them, or their numbers differ where that is 0."""

    starts: np.ndarray
    positions: np.ndarray
    weight: np.ndarray
    uniform: int

    @property
    def outputs(self) -> int:
        return len(self.starts) - 1


def _table(index: np.ndarray, weight: np.ndarray, present: np.ndarray | None = None) -> Table:
    """From (m, k): the taps of each output, all of them or those that are `present`."""
    m, k = index.shape
    if present is None:
        counts, uniform = np.full(m, k), k
    else:
        counts, uniform = present.sum(1), 0
        index, weight = index[present], weight[present]
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Table(starts.astype(np.int32), index.reshape(-1).astype(np.int32), weight.reshape(-1).astype(float), uniform)


def _copies(index: np.ndarray, present: np.ndarray | None = None) -> Table:
    return _table(index[:, None], np.ones((len(index), 1)), None if present is None else present[:, None])


def _scale(n: int, m: int, factor: float, align: bool) -> float:
    """Input positions per output position, binary64."""
    if align:
        return (n - 1) / (m - 1) if m > 1 else 0.0
    return 1 / factor if factor > 0 else n / m


def _nearest(n: int, m: int, factor: float, shift: float) -> Table:
    scale = np.float32(1 / factor) if factor > 0 else np.float32(n) / np.float32(m)
    at = (np.arange(m) + shift) * np.float64(scale)  # exact, so that fp32 rounds once
    return _copies(np.minimum(np.floor(at.astype(np.float32)).astype(np.int64), n - 1))


def _coordinates(n: int, m: int, factor: float, align: bool) -> np.ndarray:
    scale = _scale(n, m, factor, align)
    return np.arange(m) * scale if align else (np.arange(m) + 0.5) * scale - 0.5


def _linear(n: int, m: int, factor: float, align: bool) -> Table:
    at = np.maximum(_coordinates(n, m, factor, align), 0.0)
    first = np.minimum(np.floor(at).astype(np.int64), n - 1)
    part = np.minimum(at - first, 1.0)
    return _table(np.stack([first, np.minimum(first + 1, n - 1)], 1), np.stack([1 - part, part], 1))


def _near(x: np.ndarray, a: float) -> np.ndarray:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _far(x: np.ndarray, a: float) -> np.ndarray:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _cubic(n: int, m: int, factor: float, align: bool) -> Table:
    at = _coordinates(n, m, factor, align)
    first = np.floor(at)
    t = at - first
    u = 1 - t
    weight = np.stack([_far(t + 1, -0.75), _near(t, -0.75), _near(u, -0.75), _far(u + 1, -0.75)], 1)
    index = first.astype(np.int64)[:, None] + np.arange(-1, 3)
    return _table(np.clip(index, 0, n - 1), weight)


def _triangle(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    return np.where(x < 1, 1 - x, 0.0)


def _cubic_filter(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    return np.where(x < 1, _near(x, -0.5), np.where(x < 2, _far(x, -0.5), 0.0))


def _antialias(n: int, m: int, factor: float, align: bool, reach: int, of: Callable[..., np.ndarray]) -> Table:
    scale = _scale(n, m, factor, align)
    support, inverse = (reach * scale, 1 / scale) if scale >= 1 else (float(reach), 1.0)
    centre = (np.arange(m) + 0.5) * scale
    first = np.maximum(np.trunc(centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum(np.trunc(centre + support + 0.5).astype(np.int64), n)
    count = np.clip(last - first, 0, int(np.ceil(support)) * 2 + 1)
    index = first[:, None] + np.arange(max(int(count.max(initial=0)), 1))
    present = index < (first + count)[:, None]
    weight = np.where(present, of((index - centre[:, None] + 0.5) * inverse), 0.0)
    total = np.zeros(m)
    for j in range(weight.shape[1]):
        total = total + weight[:, j]
    return _table(index, np.divide(weight, total[:, None], out=weight, where=total[:, None] != 0), present)


def _padded(n: int, m: int, left: int, right: int, rule: str) -> Table:
    at = np.arange(m) - left
    if rule == "reflect":
        at = np.where(at < 0, -at, np.where(at >= n, 2 * (n - 1) - at, at))
    elif rule == "replicate":
        at = np.clip(at, 0, n - 1)
    else:  # what negative sizes cut off does not come back
        first, last = max(-left, 0), n - max(-right, 0)
        at = first + (at - first) % (last - first)
    return _copies(at)


def _windows(n: int, m: int, kernel: float, dilation: float, padding: float, stride: float) -> Table:
    """m = kernel * blocks outputs: (t, l), row-major, copies l * stride + t * dilation - padding, if that is inside."""
    taps, blocks = int(kernel), m // max(int(kernel), 1)
    at = np.arange(blocks) * int(stride) + np.arange(taps)[:, None] * int(dilation) - int(padding)
    at = at.reshape(-1)
    return _copies(at, (at >= 0) & (at < n))


RULES: dict[str, Callable[..., Table]] = {
    "nearest": lambda n, m, factor, *_: _nearest(n, m, factor, 0.0),
    "nearest-exact": lambda n, m, factor, *_: _nearest(n, m, factor, 0.5),
    "linear": lambda n, m, factor, align, *_: _linear(n, m, factor, bool(align)),
    "cubic": lambda n, m, factor, align, *_: _cubic(n, m, factor, bool(align)),
    "linear antialias": lambda n, m, factor, align, *_: _antialias(n, m, factor, bool(align), 1, _triangle),
    "cubic antialias": lambda n, m, factor, align, *_: _antialias(n, m, factor, bool(align), 2, _cubic_filter),
    "reflect": lambda n, m, left, right, *_: _padded(n, m, int(left), int(right), "reflect"),
    "replicate": lambda n, m, left, right, *_: _padded(n, m, int(left), int(right), "replicate"),
    "circular": lambda n, m, left, right, *_: _padded(n, m, int(left), int(right), "circular"),
    "windows": _windows,
}


def _transposed(table: Table, inputs: int) -> Table:
    """For every input the outputs that read it, ascending, with their weights."""
    counts = np.diff(table.starts)
    outputs = np.repeat(np.arange(table.outputs), counts)
    order = np.argsort(table.positions, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(table.positions, minlength=inputs))])
    return Table(starts.astype(np.int32), outputs[order].astype(np.int32), table.weight[order], 0)


Taps = tuple[Tensor, Tensor, Tensor, int]


# Nothing leaves it: a CUDA graph reads a table where it lies.
@functools.cache
def taps(
    rule: str, n: int, m: int, options: Sequence[float], transposed: bool, wide: torch.dtype, device: torch.device
) -> Taps | None:
    """(starts, index, weight, uniform) of m outputs from n inputs, on the device; transposed: of n from m.

    weight is rounded once to `wide`. None where every position is a copy of itself.
    """
    table = RULES[rule](n, m, *options)
    if n == m and np.array_equal(table.positions, np.arange(n)) and table.uniform == 1:
        return None
    if transposed:
        table = _transposed(table, n)
    weight = table.weight.astype(np.float64 if wide == torch.float64 else np.float32)
    starts, index, kept = (torch.from_numpy(x).to(device) for x in (table.starts, table.positions, weight))
    return starts, index, kept, table.uniform
