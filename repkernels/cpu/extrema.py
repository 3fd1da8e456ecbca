"""Largest and smallest elements on the CPU (SPEC.md, "Extrema"), by integer keys in the order of the numbers."""

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, I32, I64, bitcast, numbers
from repkernels.cpu.memory import load, load_rows, memory, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import narrow, widen

CHUNK, WIDTH = 1024, 256
NAN_KEY = I64(2**63 - 1)
# Below every key.
NO_KEY = I64(-(2**63))


def extreme(x: Tensor, largest: bool, magnitude: bool = False) -> Tensor:
    """x (R1, R2, N1, N2), R > 0, any strides -> (N1 * N2,): MAX or MIN of each column (of the |x|)."""
    return narrow(_run(x, largest, magnitude, False)[0], x.dtype)


def position(x: Tensor, largest: bool) -> Tensor:
    """The row of the first largest (smallest) element of each column, int64; zeros are equal, NaN comes first."""
    return torch.from_numpy(_run(x, largest, False, True)[1])


def _run(x: Tensor, largest: bool, magnitude: bool, find: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values, and rows if `find`."""
    x = widened(x)
    columns, sizes, strides = x.shape[2] * x.shape[3], tuple(x.shape), x.stride()
    best = np.empty(columns, numbers(x).dtype)
    rows = np.empty(columns if find else 0, np.int64)
    arguments = (memory(x), sizes, strides, largest, magnitude, find, best, rows)
    if sizes[3] > 1 and strides[3] < strides[1]:
        spread(_across, sizes[2] * -(-sizes[3] // WIDTH), x.numel(), *arguments)
    else:
        spread(_along, columns, x.numel(), *arguments)
    return best, rows


@kernel
def _along(start, stop, x, sizes, strides, largest, magnitude, find, out, rows_out):
    """One column after another."""
    state = keep_subnormals()
    rows = sizes[0] * sizes[1]
    values, keys = np.empty(CHUNK, out.dtype), np.empty(CHUNK, np.int64)
    for column in range(start, stop):
        at = column // sizes[3] * strides[2] + column % sizes[3] * strides[3]
        best, row = NO_KEY, 0
        for first in range(0, rows, CHUNK):
            n = min(rows - first, CHUNK)
            load_rows(values[:n], x, at, first, sizes, strides)
            _keys(keys[:n], values[:n], largest, magnitude, find)
            m = NO_KEY
            for j in range(n):
                m = max(m, keys[j])
            if m > best:
                best = m
                if find:
                    j = 0
                    while keys[j] != m:
                        j += 1
                    row = first + j
        _put(out, rows_out, column, best, row, largest, find)
    restore(state)


@kernel
def _across(start, stop, x, sizes, strides, largest, magnitude, find, out, rows_out):
    """WIDTH columns that are neighbours in memory at a time."""
    state = keep_subnormals()
    rows, tiles = sizes[0] * sizes[1], -(-sizes[3] // WIDTH)
    values, keys = np.empty(WIDTH, out.dtype), np.empty(WIDTH, np.int64)
    best, row = np.empty(WIDTH, np.int64), np.zeros(WIDTH, np.int64)
    for piece in range(start, stop):
        outer, left = piece // tiles, piece % tiles * WIDTH
        width = min(WIDTH, sizes[3] - left)
        best[:] = NO_KEY
        for r in range(rows):
            at = r // sizes[1] * strides[0] + r % sizes[1] * strides[1] + outer * strides[2] + left * strides[3]
            load(values[:width], x, at, strides[3])
            _keys(keys[:width], values[:width], largest, magnitude, find)
            for j in range(width):
                row[j] = r if keys[j] > best[j] else row[j]
                best[j] = max(best[j], keys[j])
        for j in range(width):
            _put(out, rows_out, outer * sizes[3] + left + j, best[j], row[j], largest, find)
    restore(state)


@njit
def _keys(keys, v, largest, magnitude, find):
    """Integers that are ordered as v is (the other way for the smallest): NaN highest; one zero if `find`."""
    if magnitude:
        for j in range(v.size):
            v[j] = abs(v[j])
    if find:
        for j in range(v.size):
            v[j] = v[j] + v.dtype.type(0)  # -0 becomes +0
    flip = I64(0 if largest else -1)
    for j in range(v.size):
        keys[j] = NAN_KEY if v[j] != v[j] else ordered(v[j]) ^ flip


@njit
def _put(out, rows_out, i, key, row, largest, find):
    out[i] = number(key if largest or key == NAN_KEY else ~key, out)
    if find:
        rows_out[i] = row


def ordered(v):
    """int64 in the order of the numbers, -0 below +0."""
    raise NotImplementedError("only inside compiled code")


def number(key, out):
    """The number of out's type that has this key, NaN for NAN_KEY."""
    raise NotImplementedError("only inside compiled code")


@overload(ordered)
def _ordered(v):
    magnitude = I64(2**31 - 1 if v == types.float32 else 2**63 - 1)

    def implementation(v):
        bits = I64(bitcast(v))
        return bits ^ ((bits >> 63) & magnitude)

    return implementation


@overload(number)
def _number(key, out):
    if out.dtype == types.float32:
        return lambda key, out: F32(np.nan) if key == NAN_KEY else bitcast(I32(key ^ ((key >> 63) & I64(2**31 - 1))))
    return lambda key, out: np.nan if key == NAN_KEY else bitcast(I64(key ^ ((key >> 63) & NAN_KEY)))


def maximum(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    """a, b: contiguous, one shape and dtype -> the larger (smaller) of each pair, NaN if either is."""
    out = np.empty(a.shape, widen(a).dtype)
    n = out.size
    spread(_maximum, n, n, widen(a).reshape(-1), widen(b).reshape(-1), largest, out.reshape(-1))
    return narrow(out, a.dtype)


@kernel
def _maximum(start, stop, a, b, largest, out):
    state = keep_subnormals()
    flip = I64(0 if largest else -1)
    for i in range(start, stop):
        first = NAN_KEY if a[i] != a[i] else ordered(a[i]) ^ flip
        second = NAN_KEY if b[i] != b[i] else ordered(b[i]) ^ flip
        out[i] = a[i] if first >= second else b[i]
    restore(state)


def maximum_gradient(g: Tensor, a: Tensor, b: Tensor, largest: bool) -> Tensor:
    """The gradient of a; g, a, b: contiguous, one shape and dtype. Half of g where a equals b."""
    out = np.empty(a.shape, widen(a).dtype)
    n = out.size
    spread(_maximum_gradient, n, n, *(widen(t).reshape(-1) for t in (g, a, b)), largest, out.reshape(-1))
    return narrow(out, a.dtype)


@kernel
def _maximum_gradient(start, stop, g, a, b, largest, out):
    state = keep_subnormals()
    half, zero = out.dtype.type(0.5), out.dtype.type(0)
    for i in range(start, stop):
        less = a[i] < b[i] if largest else a[i] > b[i]
        out[i] = zero if less else g[i] * half if a[i] == b[i] else g[i]
    restore(state)
