"""A strided tensor as the memory it covers: one layout for Numba to compile for, whose contiguous parts vectorise."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.functions import numbers, put, widened


def memory(x: Tensor) -> np.ndarray:
    """`numbers` of the memory that x covers, 1-D: element (i, j, ...) is at the sum of index * stride."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return numbers(x.as_strided((last + 1 if x.numel() else 0,), (1,)))


@njit
def load(out, x, at, stride):
    """out[j] = x[at + j * stride], widened."""
    if stride == 1:
        part = x[at : at + out.size]
        for j in range(out.size):
            out[j] = widened(part[j])
    else:
        for j in range(out.size):
            out[j] = widened(x[at + j * stride])


@njit
def load_rows(out, x, at, first, sizes, strides):
    """out[j] = row `first + j` of the column that starts at x[at], of a tensor (R1, R2, N1, N2)."""
    inner, done = sizes[1], 0
    while done < out.size:
        outer = first // inner
        n = min(out.size - done, (outer + 1) * inner - first)
        load(out[done : done + n], x, at + outer * strides[0] + (first - outer * inner) * strides[1], strides[1])
        first += n
        done += n


@njit
def store(out, at, stride, v):
    """out[at + j * stride] = v[j], rounded once."""
    if stride == 1:
        part = out[at : at + v.size]
        for j in range(v.size):
            put(part, j, v[j])
    else:
        for j in range(v.size):
            put(out, at + j * stride, v[j])


@njit
def store_rows(out, at, first, sizes, strides, v):
    """The inverse of `load_rows`."""
    inner, done = sizes[1], 0
    while done < v.size:
        outer = first // inner
        n = min(v.size - done, (outer + 1) * inner - first)
        store(out, at + outer * strides[0] + (first - outer * inner) * strides[1], strides[1], v[done : done + n])
        first += n
        done += n
