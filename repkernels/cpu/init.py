"""Orthonormal vectors on the CPU (SPEC.md, "Initialisation")."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import LANES, sum_in_place


def orthonormalise(vectors: Tensor, gain: float) -> None:
    """The rows of binary64 `vectors` (count, n), in place, by the modified method of Gram and Schmidt, times gain."""
    array = vectors.numpy()
    for k in range(len(array)):
        _normalise(array[k])
        left = len(array) - k - 1
        spread(_subtract, left, left * array.shape[1], array[k + 1 :], array[k])
    spread(_multiply, len(array), array.size, array, np.array([gain]))


@kernel
def _normalise(v):
    state = keep_subnormals()
    length = np.sqrt(_dot(v, v, np.empty(v.size), np.empty(LANES)))
    for i in range(v.size):
        v[i] = v[i] / length
    restore(state)


@kernel
def _subtract(start, stop, rows, q):
    """Each row less its part along q."""
    state = keep_subnormals()
    terms, lanes = np.empty(q.size), np.empty(LANES)
    for j in range(start, stop):
        t = _dot(rows[j], q, terms, lanes)
        for i in range(q.size):
            rows[j, i] = rows[j, i] - q[i] * t
    restore(state)


@kernel
def _multiply(start, stop, rows, gain):
    state = keep_subnormals()
    for j in range(start, stop):
        for i in range(rows.shape[1]):
            rows[j, i] = rows[j, i] * gain[0]
    restore(state)


@njit
def _dot(a, b, terms, lanes):
    for i in range(a.size):
        terms[i] = a[i] * b[i]
    return sum_in_place(terms, lanes)
