"""Normal numbers on the CPU (SPEC.md, "Random numbers"), by Box and Muller, two of two words."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import ln_f32, numbers, put
from repkernels.cpu.random import CHUNK, F32, U32, U64, UNIT, fill, over_chunks
from repkernels.cpu.rounded.trigonometric import sincospi
from repkernels.subnormals import subnormals_kept


def normal(out: Tensor, seed: int, stream: int, mean: float, std: float, turn: int) -> None:
    """out, contiguous: N(mean, std^2), rounded to its dtype, from the words 2^34 * turn onwards."""
    with subnormals_kept():
        scalars = np.array([std, mean], F32)
    over_chunks(_normal, out.numel(), CHUNK, seed, stream, numbers(out).reshape(-1), scalars, U64(turn << 32))


@kernel
def _normal(start, stop, seed, stream, out, scalars, first):
    state = keep_subnormals()
    words = np.empty(CHUNK, U32)
    std, mean = scalars[0], scalars[1]
    for chunk in range(start, stop):
        fill(words, first + U64(chunk * CHUNK // 4), seed, stream)
        top = chunk * CHUNK
        count = min(CHUNK, out.size - top)
        for i in range(0, count, 2):
            a, b = normal_pair(words[i], words[i + 1])
            put(out, top + i, a * std + mean)
            if i + 1 < count:
                put(out, top + i + 1, b * std + mean)
    restore(state)


@njit
def normal_pair(w, v):
    """Two standard normal numbers of two words, by Box and Muller."""
    u = F32(np.int32((w >> U32(8)) + U32(1))) * UNIT
    r = F32(np.sqrt(F32(F32(-2) * ln_f32(u))))
    s, c = sincospi(F32(np.int32(v >> U32(8))) * F32(2.0**-23))
    return r * c, r * s
