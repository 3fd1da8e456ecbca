"""SUM on the CPU (SPEC.md, "Sums"): 1024 lanes, halved; blocks of 65536, summed recursively."""

import numpy as np
from numba import njit
from torch import Tensor, float64

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread

LANES, BLOCK = 1024, 65536
WIDTH = 256


def sum_rows(x: Tensor) -> Tensor:
    """The SUM of every column of x (R, N), any strides -> (N,) in x's dtype; half types are rounded once."""
    rows, columns = x.shape
    out = x.new_empty(columns)
    terms = numbers(x)
    while True:
        blocks = max(1, -(-rows // BLOCK))
        sums = np.empty((blocks, columns), np.float64 if x.dtype == float64 else np.float32)
        if columns == 1 or abs(terms.strides[0]) < abs(terms.strides[1]):
            spread(_along, blocks * columns, terms.size, terms.T, sums)
        else:
            spread(_across, blocks * -(-columns // WIDTH), terms.size, terms, sums)
        if blocks == 1:
            spread(_store, columns, columns, sums[0], numbers(out))
            return out
        terms, rows = sums, blocks


@kernel
def _across(start, stop, x, sums):
    """sums[block, column] for columns that are neighbours in memory, WIDTH of them at a time."""
    state = keep_subnormals()
    lanes = np.empty((LANES, WIDTH), sums.dtype)
    tiles = -(-x.shape[1] // WIDTH)
    for piece in range(start, stop):
        block, left = piece // tiles, piece % tiles * WIDTH
        top, bottom = block * BLOCK, min((block + 1) * BLOCK, x.shape[0])
        width = min(WIDTH, x.shape[1] - left)
        n, half = min(bottom - top, LANES), LANES // 2
        for j in range(n):
            _take(lanes[j, :width], x[top + j, left : left + width])
        for row in range(top + LANES, bottom):
            _add(lanes[row % LANES, :width], x[row, left : left + width])
        while half:
            for j in range(n - half):
                _add(lanes[j, :width], lanes[j + half, :width])
            n, half = min(n, half), half // 2
        for c in range(width):
            sums[block, left + c] = lanes[0, c] if bottom > top else 0.0
    restore(state)


@kernel
def _along(start, stop, x, sums):
    """sums[block, column] of x (column, row), for columns that lie along memory."""
    state = keep_subnormals()
    lanes = np.empty(LANES, sums.dtype)
    columns, rows = x.shape
    for piece in range(start, stop):
        block, column = piece // columns, piece % columns
        top, bottom = block * BLOCK, min((block + 1) * BLOCK, rows)
        _take(lanes, x[column, top : min(top + LANES, bottom)])
        for first in range(top + LANES, bottom, LANES):
            _add(lanes, x[column, first : min(first + LANES, bottom)])
        sums[block, column] = halve(lanes, min(bottom - top, LANES))
    restore(state)


@kernel
def _store(start, stop, sums, out):
    state = keep_subnormals()
    for i in range(start, stop):
        put(out, i, sums[i])
    restore(state)


@njit
def _take(lanes, x):
    for j in range(x.size):
        lanes[j] = widened(x[j])


@njit
def _add(lanes, x):
    for j in range(x.size):
        lanes[j] += widened(x[j])


@njit
def halve(lanes, n):
    """The sum of the first n <= 1024 lanes by halvings; their values are lost. A missing lane is -0: nothing to add."""
    if n == 0:
        return lanes.dtype.type(0)
    half = LANES // 2
    while half:
        _add(lanes, lanes[half : max(n, half)])
        n, half = min(n, half), half // 2
    return lanes[0]


@njit
def sum_in_place(terms, lanes):
    """The SUM of 1-D `terms`, whose values are lost; `lanes` is scratch for LANES numbers."""
    n = terms.size
    while True:
        blocks = max(1, -(-n // BLOCK))
        for block in range(blocks):
            top, bottom = block * BLOCK, min((block + 1) * BLOCK, n)
            _take(lanes, terms[top : min(top + LANES, bottom)])
            for first in range(top + LANES, bottom, LANES):
                _add(lanes, terms[first : min(first + LANES, bottom)])
            terms[block] = halve(lanes, min(bottom - top, LANES))
        if blocks == 1:
            return terms[0]
        n = blocks
