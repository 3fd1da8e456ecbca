"""Resampling on the CPU (SPEC.md, "Resampling"): one axis after the other, the last one first, in the wide format."""

from collections.abc import Sequence

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import fma
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import narrow, widen


def resample(x: Tensor, out: Tensor, tables: Sequence[tuple[Tensor, Tensor, Tensor, int] | None]) -> None:
    """out (N, C, D', H', W'), contiguous or channels_last, from x (N, C, D, H, W), any strides.

    tables: for each of the three axes (starts, index, weight, taps of each output or 0), or None for a copy.
    """
    last = not out.is_contiguous()
    values = widen(x.permute(0, 2, 3, 4, 1) if last else x)
    for axis in (2, 1, 0):
        table = tables[axis]
        if table is not None:
            values = _axis(values, axis + (1 if last else 2), *table[:3])
    result = narrow(np.ascontiguousarray(values), out.dtype)
    out.copy_(result.permute(0, 4, 1, 2, 3) if last else result)


def _axis(x: np.ndarray, axis: int, starts: Tensor, index: Tensor, weight: Tensor) -> np.ndarray:
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    outputs = starts.shape[0] - 1
    out = np.empty((*before, outputs, *after), x.dtype)
    outer, inner = int(np.prod(before)), int(np.prod(after))
    view, result = x.reshape(outer, x.shape[axis], inner), out.reshape(outer, outputs, inner)
    arguments = view, starts.numpy(), index.numpy(), weight.numpy(), result
    spread(_lines if inner > 1 else _elements, outer, out.size + x.size, *arguments)
    return out


@kernel
def _lines(start, stop, x, starts, index, weight, out):
    state = keep_subnormals()
    for i in range(start, stop):
        for o in range(out.shape[1]):
            line = out[i, o]
            first, last = starts[o], starts[o + 1]
            if first == last:
                for j in range(line.size):
                    line[j] = 0
            else:
                _begin(line, x[i, index[first]], weight[first])
            for k in range(first + 1, last):
                _add(line, x[i, index[k]], weight[k])
    restore(state)


@njit
def _begin(line, x, w):
    for j in range(line.size):
        line[j] = w * x[j]


@njit
def _add(line, x, w):
    for j in range(line.size):
        line[j] = fma(w, x[j], line[j])


@kernel
def _elements(start, stop, x, starts, index, weight, out):
    state = keep_subnormals()
    for i in range(start, stop):
        row, result = x[i, :, 0], out[i, :, 0]
        for o in range(result.size):
            first, last = starts[o], starts[o + 1]
            t = result.dtype.type(0)
            if first < last:
                t = weight[first] * row[index[first]]
            for k in range(first + 1, last):
                t = fma(weight[k], row[index[k]], t)
            result[o] = t
    restore(state)
