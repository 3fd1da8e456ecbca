"""Copying a block of an operand into groups of rows (vectors.py), from any layout and format."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from repkernels.cpu.functions import put, widened
from repkernels.cpu.vectors import BYTES, pack_straight, pack_transposed


@njit
def pack(x, at, row, step, count, depth, out, out_at):
    """Packs element (r, k) = x[at + r * row + k * step], r < count, k < depth, as one group of fp32 or fp64 numbers.

    Rows from `count` on repeat the last one: what they lead to is not stored.
    """
    lanes = BYTES // out.itemsize
    done = 0
    if step == 1:
        pack_transposed(x, at, row, count - 1, depth // lanes, out, out_at, lanes)
        done = depth // lanes * lanes
    elif row == 1 and count == lanes:
        pack_straight(x, at, step, depth, out, out_at)
        done = depth
    for k in range(done, depth):
        for r in range(lanes):
            out[out_at + k * lanes + r] = widened(x[at + min(r, count - 1) * row + k * step])


@njit
def to_signs(x):
    """Replaces every finite element by -1, 0 or 1."""
    for i in range(len(x)):
        if np.isfinite(x[i]):
            x[i] = (x[i] > 0) - (x[i] < 0)


def put_result(out: Any, i: Any, r: Any) -> None:
    """out[i] = r, rounded once to the format of `out`; a zero is +0."""
    raise NotImplementedError("only inside compiled code")


@overload(put_result)
def _put_result(out, i, r):
    if isinstance(out.dtype, types.Float):
        zero = np.dtype(out.dtype.name).type(0)

        def implementation(out, i, r):
            out[i] = r + zero
    else:

        def implementation(out, i, r):
            put(out, i, r)
            if out[i] & 0x7FFF == 0:
                out[i] = 0

    return implementation
