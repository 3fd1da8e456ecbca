"""SUM on the CPU (SPEC.md, "Sums"): 1024 lanes, halved; blocks of 65536, summed recursively."""

import numpy as np
import torch
from numba import njit
from torch import Tensor, float64

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, widened
from repkernels.cpu.memory import load, load_rows, memory
from repkernels.cpu.memory import widened as in_wide
from repkernels.cpu.spread import spread
from repkernels.cpu.terms import FINISHES, TERMS, VALUE, finished, make_terms
from repkernels.cpu.wide import narrow

LANES, BLOCK = 1024, 65536
WIDTH = 256


def sum_rows(x: Tensor) -> Tensor:
    """The SUM of every column of x (R, N), any strides -> (N,) in x's dtype; half types are rounded once."""
    return reduce(x[None, :, None], "value", None, "sum", 1, x.dtype)


def reduce(x: Tensor, term: str, center: Tensor | None, finish: str, divisor: float, dtype: torch.dtype) -> Tensor:
    """x (R1, R2, N1, N2), any strides -> (N1 * N2,) in `dtype`: the SUM of the terms of each column, finished.

    term, finish: names of terms.py. center: (N,) contiguous, for the terms and the finish that take one. divisor:
    rounded once to the format of the sum, fp64 if x or the result is fp64, fp32 otherwise.
    """
    x = x.double() if dtype == float64 else in_wide(x)
    rows, columns = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    centers = numbers(x.new_zeros(columns) if center is None else center.to(x.dtype))
    wide = centers.dtype
    terms, sizes, strides, kind, work = memory(x), tuple(x.shape), x.stride(), TERMS[term], x.numel()
    while rows and columns:
        blocks = -(-rows // BLOCK)
        sums = np.empty((blocks, columns), wide)
        arguments = (terms, sizes, strides, centers, kind, sums)
        if sizes[3] > 1 and strides[3] < strides[1]:
            spread(_across, blocks * sizes[2] * -(-sizes[3] // WIDTH), work, *arguments)
        else:
            spread(_along, blocks * columns, work, *arguments)
        if blocks == 1:
            break
        terms, sizes, strides = sums.reshape(-1), (1, blocks, 1, columns), (0, columns, 0, 1)
        rows, kind, work = blocks, VALUE, sums.size
    else:
        sums = np.zeros((1, columns), wide)
    spread(_finish, columns, columns, sums[0], centers, wide.type(divisor), FINISHES[finish])
    return narrow(sums[0], dtype)


@kernel
def _across(start, stop, x, sizes, strides, centers, kind, sums):
    """sums[block, column] for columns that are neighbours in memory, WIDTH of them at a time."""
    state = keep_subnormals()
    rows, tiles = sizes[0] * sizes[1], -(-sizes[3] // WIDTH)
    lanes, terms = np.empty((LANES, WIDTH), sums.dtype), np.empty(WIDTH, sums.dtype)
    for piece in range(start, stop):
        block, outer, left = piece // (sizes[2] * tiles), piece // tiles % sizes[2], piece % tiles * WIDTH
        width = min(WIDTH, sizes[3] - left)
        column = outer * sizes[3] + left
        center, row = centers[column : column + width], terms[:width]
        top, bottom = block * BLOCK, min((block + 1) * BLOCK, rows)
        for r in range(top, bottom):
            at = r // sizes[1] * strides[0] + r % sizes[1] * strides[1] + outer * strides[2] + left * strides[3]
            lane = lanes[(r - top) % LANES, :width]
            part = lane if r < top + LANES else row
            load(part, x, at, strides[3])
            make_terms(kind, part, center)
            if r >= top + LANES:
                _add(lane, part)
        n, half = min(bottom - top, LANES), LANES // 2
        while half:
            for j in range(n - half):
                _add(lanes[j, :width], lanes[j + half, :width])
            n, half = min(n, half), half // 2
        for j in range(width):
            sums[block, column + j] = lanes[0, j]
    restore(state)


@kernel
def _along(start, stop, x, sizes, strides, centers, kind, sums):
    """sums[block, column] one column after another."""
    state = keep_subnormals()
    rows, columns = sizes[0] * sizes[1], sizes[2] * sizes[3]
    lanes, terms = np.empty(LANES, sums.dtype), np.empty(LANES, sums.dtype)
    center = np.empty(LANES, sums.dtype)
    for piece in range(start, stop):
        block, column = piece // columns, piece % columns
        at = column // sizes[3] * strides[2] + column % sizes[3] * strides[3]
        top, bottom = block * BLOCK, min((block + 1) * BLOCK, rows)
        center[: min(bottom - top, LANES)] = centers[column]
        for first in range(top, bottom, LANES):
            n = min(bottom - first, LANES)
            part = lanes[:n] if first == top else terms[:n]
            load_rows(part, x, at, first, sizes, strides)
            make_terms(kind, part, center[:n])
            if first > top:
                _add(lanes, part)
        sums[block, column] = halve(lanes, min(bottom - top, LANES))
    restore(state)


@kernel
def _finish(start, stop, sums, centers, divisor, finish):
    state = keep_subnormals()
    for i in range(start, stop):
        sums[i] = finished(finish, sums[i], centers[i], divisor)
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
