"""Norms of a list of tensors on the CPU, and their scaling (SPEC.md, "Clipping gradients")."""

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import BLOCK, LANES, halve, sum_in_place

KINDS = {"1": 1, "2": 2, "inf": 0}


def norms(x: Sequence[Tensor], kind: str) -> Tensor:
    """(len(x),) in fp32, or fp64 of fp64: the norms of type `kind`, "1", "2" or "inf", of contiguous tensors of one
    dtype."""
    wide = np.float64 if x[0].dtype == torch.float64 else np.float32
    out = np.zeros(len(x), wide)
    for i, tensor in enumerate(x):
        if tensor.numel():
            sums = np.empty(-(-tensor.numel() // BLOCK), wide)
            spread(_blocks, len(sums), tensor.numel(), numbers(tensor).reshape(-1), sums, KINDS[kind])
            _join(sums, out[i : i + 1], KINDS[kind])
    return torch.from_numpy(out)


def scale(x: Sequence[Tensor], factor: Tensor) -> None:
    """x = RN(x * factor), rounded to its dtype; contiguous tensors of one dtype; factor: one number."""
    wide = np.float64 if x[0].dtype == torch.float64 else np.float32
    c = numbers(factor).reshape(-1).astype(wide)
    for tensor in x:
        spread(_scale, tensor.numel(), tensor.numel(), numbers(tensor).reshape(-1), c)


@kernel
def _blocks(start, stop, x, sums, kind):
    """sums[block]: SUM of the block's squares (kind 2) or magnitudes (1), or their maximum (0)."""
    state = keep_subnormals()
    lanes = np.empty(LANES, sums.dtype)
    for block in range(start, stop):
        top, bottom = block * BLOCK, min((block + 1) * BLOCK, x.size)
        n = min(LANES, bottom - top)
        if kind == 0:
            largest = sums.dtype.type(0)
            for i in range(top, bottom):
                v = abs(widened(x[i]))
                largest = v if (v > largest) | (v != v) else largest
            sums[block] = largest
        else:
            _take(lanes[:n], x[top : top + n], kind)
            for first in range(top + LANES, bottom, LANES):
                _add(lanes, x[first : min(first + LANES, bottom)], kind)
            sums[block] = halve(lanes, n)
    restore(state)


@njit
def _take(lanes, x, kind):
    for j in range(x.size):
        v = widened(x[j])
        lanes[j] = v * v if kind == 2 else abs(v)


@njit
def _add(lanes, x, kind):
    for j in range(x.size):
        v = widened(x[j])
        lanes[j] += v * v if kind == 2 else abs(v)


@kernel
def _join(sums, out, kind):
    state = keep_subnormals()
    if kind == 0:
        largest = sums[0]
        for v in sums:
            largest = v if (v > largest) | (v != v) else largest
        out[0] = largest
    else:
        total = sum_in_place(sums, np.empty(LANES, sums.dtype))
        out[0] = np.sqrt(total) if kind == 2 else total
    restore(state)


@kernel
def _scale(start, stop, x, factor):
    state = keep_subnormals()
    for i in range(start, stop):
        put(x, i, widened(x[i]) * factor[0])
    restore(state)
