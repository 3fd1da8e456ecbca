"""Storing results: bias, one rounding to the output's format, +0 for every zero (SPEC.md, "matmul and linear")."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from repkernels.cpu.functions import put, widened


@njit
def store(line, bias, out):
    """out = line + bias, elementwise; no bias if that is empty. `line` is overwritten."""
    if len(bias) > 0:
        for i in range(len(line)):
            line[i] += widened(bias[i])
    for i in range(len(line)):
        put_result(out, i, line[i])


@njit
def store_special(line, bias, out):
    """As `store`, only where `line` is not finite."""
    for i in range(len(line)):
        if not np.isfinite(line[i]):
            put_result(out, i, line[i] + widened(bias[i]) if len(bias) > 0 else line[i])


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
