"""Cumulative sums on the CPU (SPEC.md, "cumsum"): a scan of every block of 1024, then what came before it."""

import numpy as np
from numba import njit
from torch import Tensor, float64

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.memory import like, load, memory, narrow_to, store, widened
from repkernels.cpu.spread import spread

BLOCK = 1024


def cumsum(x: Tensor, out: Tensor, reverse: bool) -> None:
    """Writes to `out` the cumulative sums of x along its rows, both (1, R, N1, N2), any strides.

    reverse: from the last row to the first.
    """
    x = x.double() if out.dtype == float64 else widened(x)
    wide, sizes = like(out), tuple(x.shape)
    spread(
        _cumsum, sizes[2] * sizes[3], x.numel(), memory(x), memory(wide), sizes, x.stride(), wide.stride(), reverse
    )  # fmt: skip
    narrow_to(out, wide)


@njit
def _way(rows, stride, reverse):
    """(offset of the first row, step to the next)."""
    return ((rows - 1) * stride, -stride) if reverse else (0, stride)


@kernel
def _cumsum(start, stop, x, out, sizes, strides, out_strides, reverse):
    """One column after another."""
    state = keep_subnormals()
    rows = sizes[1]
    v = np.empty(BLOCK, x.dtype)
    first_x, step_x = _way(rows, strides[1], reverse)
    first_out, step_out = _way(rows, out_strides[1], reverse)
    for column in range(start, stop):
        n1, n2 = column // sizes[3], column % sizes[3]
        at, to = first_x + n1 * strides[2] + n2 * strides[3], first_out + n1 * out_strides[2] + n2 * out_strides[3]
        carry = -v.dtype.type(0)
        for first in range(0, rows, BLOCK):
            part = v[: min(rows - first, BLOCK)]
            load(part, x, at + first * step_x, step_x)
            half = 1
            while half < part.size:
                for i in range(half, part.size, 2 * half):
                    _add(part[i : i + half], part[i - 1])
                half *= 2
            _add(part, carry)
            carry = part[part.size - 1]
            store(out, to + first * step_out, step_out, part)
    restore(state)


@njit
def _add(v, c):
    for j in range(v.size):
        v[j] += c
