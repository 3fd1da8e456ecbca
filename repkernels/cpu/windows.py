"""Windows of pooling as compiled code walks them: tables of where they begin, planes in blocks of channels.

A block is one plane, or, where channels are neighbours in memory, several that are visited at every position in turn.
All tensors are (N, C, D, H, W) as the memory they cover.
"""

from typing import Any

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.memory import memory
from repkernels.cpu.spread import spread
from repkernels.windows import Windows

_CHANNELS = 64


def walk(kernel: Any, w: Windows, starts: np.ndarray | None, a: Tensor, b: Tensor, work: int, *args: Any) -> None:
    """kernel(start, stop, table, sizes, a, strides of a, b, strides of b, *args) over blocks of planes.

    a, b: fp32 or fp64. table: `table_of` the windows. sizes: samples, channels, channels of a block, the three output
    sizes, the three kernel sizes and dilations. work: how many elements are touched in all.
    """
    samples, channels = a.shape[:2]
    neighbours = starts is None and a.stride(1) == 1 and a.stride(4) != 1
    size = min(channels, _CHANNELS) if neighbours else 1
    sizes = np.array([samples, channels, size, *w.output, *w.kernel, *w.dilation], np.int64)
    blocks = samples * -(-channels // size)
    table = table_of(w, starts)
    spread(kernel, blocks, work, table, sizes, memory(a), a.stride(), memory(b), b.stride(), *args)


def table_of(w: Windows, starts: np.ndarray | None) -> np.ndarray:
    """int64 (planes, sum of output, 3): each window's first position, first tap inside and the tap after the last one.

    Windows of the three axes follow one another. starts: the first positions, for each plane; without them one plane
    stands for all.
    """
    tables, before = [], 0
    for size, kernel, stride, padding, dilation, output in zip(*w[:6], strict=True):
        first, end = _ends(w, size, kernel, stride, padding, dilation, output)
        if starts is not None:
            first = starts[:, before : before + output]
            end = first + kernel
        low = np.maximum(0, -(first // dilation))
        high = np.maximum(low, (np.minimum(end, size) - 1 - first) // dilation + 1)
        tables.append(np.stack([first, low, high], -1).reshape(-1, output, 3))
        before += output
    return np.ascontiguousarray(np.concatenate(tables, 1), np.int64)


def divisors(w: Windows, divide_by: int) -> np.ndarray:
    """int64 (sum of output,): how many positions of each axis's windows are counted; see avg_pool.py."""
    counts = []
    for size, kernel, stride, padding, dilation, output in zip(*w[:6], strict=True):
        first, end = _ends(w, size, kernel, stride, padding, dilation, output)
        inside = np.minimum(end, size) - np.maximum(first, 0)
        counts.append(inside if divide_by == 1 else np.minimum(end, size + padding) - first)
    return np.concatenate(counts)


def _ends(
    w: Windows, size: int, kernel: int, stride: int, padding: int, dilation: int, output: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each window's first position and the one after its last, in the padded input."""
    o = np.arange(output, dtype=np.int64)
    if w.adaptive:
        return o * size // output, -(-(o + 1) * size // output)
    first = o * stride - padding
    return first, first + (kernel - 1) * dilation + 1


@njit
def planes_of(block, sizes):
    """(sample, first channel, channel after the last) of a block."""
    channels, size = sizes[1], sizes[2]
    parts = -(-channels // size)
    first = block % parts * size
    return block // parts, first, min(first + size, channels)
