"""Times of an exponential race on the CPU (SPEC.md, "Random numbers"): who is drawn without replacement."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import bitcast
from repkernels.cpu.random import CHUNK, F32, HALF, U32, U64, fill, over_chunks
from repkernels.cpu.rounded.logarithm import log1p


def race(out: Tensor, seed: int, stream: int, weights: Tensor) -> None:
    """out, contiguous int32: the bits of each element's time, an exponential variable over its weight (fp32)."""
    over_chunks(_race, out.numel(), CHUNK // 2, seed, stream, out.numpy().reshape(-1), weights.numpy().reshape(-1))


@kernel
def _race(start, stop, seed, stream, out, weights):
    state = keep_subnormals()
    words = np.empty(CHUNK, U32)
    for chunk in range(start, stop):
        fill(words, chunk * CHUNK // 4, seed, stream)
        top = chunk * (CHUNK // 2)
        for i in range(min(CHUNK // 2, out.size - top)):
            # The word's 63 highest bits, since only signed integers are converted alike everywhere.
            word = np.int64((U64(words[2 * i]) << HALF | U64(words[2 * i + 1])) >> U64(1))
            v = F32(word) * F32(2.0**-63)
            out[top + i] = race_time(v, weights[top + i])
    restore(state)


@njit
def race_time(v, weight):
    """The bits of RN(-log1p(-v) / weight), which order as integers do; the highest integer where the weight is 0."""
    if not weight > F32(0):
        return np.int32(0x7FFFFFFF)
    return bitcast(F32(F32(-log1p(-v)) / weight))
