"""Windows of pooling as compiled code walks them: geometry as tuples of ints, planes in blocks of channels.

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
_NO_STARTS = np.empty((0, 0), np.int64)


def walk(kernel: Any, w: Windows, starts: np.ndarray | None, a: Tensor, b: Tensor, work: int, *args: Any) -> None:
    """kernel(start, stop, geometry, starts, counts, a, strides of a, b, strides of b, *args) over blocks of planes.

    a, b: fp32 or fp64. counts: samples, channels, and the channels of a block. starts: first positions of windows for
    each plane (N * C, sum of output), instead of those of `w`; a block is then one plane. work: how many elements are
    touched in all.
    """
    samples, channels = a.shape[:2]
    neighbours = starts is None and a.stride(1) == 1 and a.stride(4) != 1
    size = min(channels, _CHANNELS) if neighbours else 1
    kind = 1 if w.adaptive else 0 if starts is None else 2
    geometry = (w.size, w.kernel, w.stride, w.padding, w.dilation, w.output, (kind, 0, 0))
    counts = (samples, channels, size)
    first = _NO_STARTS if starts is None else starts
    blocks = samples * -(-channels // size)
    spread(kernel, blocks, work, geometry, first, counts, memory(a), a.stride(), memory(b), b.stride(), *args)


@njit
def planes_of(block, counts):
    """(sample, first channel, channel after the last) of a block."""
    _, channels, size = counts
    parts = -(-channels // size)
    first = block % parts * size
    return block // parts, first, min(first + size, channels)


@njit
def window(axis, o, plane, geometry, starts):
    """(first position, position after the last) of window o, both as they are before the input's ends cut it off."""
    size, kernel, stride, padding, dilation, output, kind = geometry
    if kind[0] == 1:
        return o * size[axis] // output[axis], -(-(o + 1) * size[axis] // output[axis])
    if kind[0] == 2:
        before = 0
        for earlier in range(axis):
            before += output[earlier]
        first = starts[plane, before + o]
    else:
        first = o * stride[axis] - padding[axis]
    return first, first + (kernel[axis] - 1) * dilation[axis] + 1


@njit
def windows_at(d, h, w, plane, geometry, starts):
    """(first position, first tap, tap after the last one) of a window along each axis, of the taps inside."""
    d_first, d_end = window(0, d, plane, geometry, starts)
    h_first, h_end = window(1, h, plane, geometry, starts)
    w_first, w_end = window(2, w, plane, geometry, starts)
    return (
        (d_first, *taps_of(0, d_first, d_end, geometry)),
        (h_first, *taps_of(1, h_first, h_end, geometry)),
        (w_first, *taps_of(2, w_first, w_end, geometry)),
    )


@njit
def taps_of(axis, first, end, geometry):
    """(first tap inside of the input, tap after the last one) of a window."""
    size, dilation = geometry[0][axis], geometry[4][axis]
    low = 0 if first >= 0 else (-first + dilation - 1) // dilation
    return low, max(low, (min(end, size) - 1 - first) // dilation + 1)
