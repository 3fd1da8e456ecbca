"""Dropout on the CPU (SPEC.md, "Dropout"): elementwise, by the words of a stream."""

import numpy as np
from torch import Tensor, float64

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.random import CHUNK, LOW, U32, U64, fill, over_chunks, philox
from repkernels.subnormals import subnormals_kept


def dropout(
    x: Tensor, seed: int, stream: int, threshold: int, scale: float, shift: float, dropped: float, inner: int
) -> Tensor:
    """RN(RN(x * scale) + shift) where the element's word is below `threshold`, else `dropped`; x contiguous.

    Elements inner * j .. inner * j + inner - 1 share word j. shift 0: nothing is added. Scalars: rounded once.
    """
    out = x.new_empty(x.shape)
    with subnormals_kept():
        scalars = np.array([scale, shift, dropped], np.float64 if x.dtype == float64 else np.float32)
    arrays = (numbers(x).reshape(-1), numbers(out).reshape(-1), scalars, np.int64(threshold), shift != 0)
    if inner <= 1:
        over_chunks(_by_element, x.numel(), CHUNK, seed, stream, *arrays)
    else:
        over_chunks(_by_channel, x.numel(), inner, seed, stream, *arrays, inner)
    return out


@kernel
def _by_element(start, stop, seed, stream, x, out, scalars, threshold, shifted):
    state = keep_subnormals()
    words = np.empty(CHUNK, U32)
    scale, shift, dropped = scalars[0], scalars[1], scalars[2]
    for chunk in range(start, stop):
        fill(words, chunk * CHUNK // 4, seed, stream)
        top = chunk * CHUNK
        for i in range(min(CHUNK, x.size - top)):
            y = widened(x[top + i]) * scale
            if shifted:
                y = y + shift
            put(out, top + i, y if np.int64(words[i]) < threshold else dropped)
    restore(state)


@kernel
def _by_channel(start, stop, seed, stream, x, out, scalars, threshold, shifted, inner):
    state = keep_subnormals()
    scale, shift, dropped = scalars[0], scalars[1], scalars[2]
    for channel in range(start, stop):
        a, b, c, d = philox(U64(channel >> 2), seed, stream)
        place = channel & 3
        word = a if place == 0 else b if place == 1 else c if place == 2 else d
        kept = np.int64(word & LOW) < threshold
        for i in range(channel * inner, (channel + 1) * inner):
            y = widened(x[i]) * scale
            if shifted:
                y = y + shift
            put(out, i, y if kept else dropped)
    restore(state)
