"""The SUM of each group of rows on the CPU (SPEC.md, "Grouped sums"): a group's lanes for WIDTH columns at a time."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.divide import divide
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.memory import load, memory, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import BLOCK, LANES
from repkernels.cpu.wide import narrow, widen

WIDTH = 256
SUM, MEAN, ADD = range(3)


def grouped_sum(
    x: Tensor, order: Tensor, starts: Tensor, base: Tensor | None, alpha: float, mean: bool, dtype: torch.dtype
) -> Tensor:
    """x (P, C), any strides -> (T, C) in `dtype`: row t from the rows order[starts[t]] .. order[starts[t + 1] - 1].

    Their SUM; mean: divided by their number; base (T, C): base + alpha * SUM, or base itself where there are none.
    order (P,), starts (T + 1,): int64, contiguous. alpha: rounded once to the format of the sum.
    """
    x, groups, columns = widened(x), starts.shape[0] - 1, x.shape[1]
    out = np.zeros((groups, columns), np.float64 if x.dtype == torch.float64 else np.float32)
    onto = out if base is None else widen(base)
    finish = MEAN if mean else SUM if base is None else ADD
    tiles = -(-columns // WIDTH)
    work = x.numel() + out.size
    arguments = (memory(x), x.stride(), order.numpy(), starts.numpy(), onto, out.dtype.type(alpha), finish)
    spread(_grouped_sum, groups * tiles, work, *arguments, out)
    return narrow(out, dtype)


@kernel
def _grouped_sum(start, stop, x, strides, order, starts, base, alpha, finish, out):
    state = keep_subnormals()
    columns = out.shape[1]
    tiles = -(-columns // WIDTH)
    lanes, row = np.empty((LANES, WIDTH), out.dtype), np.empty(WIDTH, out.dtype)
    for piece in range(start, stop):
        group, left = piece // tiles, piece % tiles * WIDTH
        width = min(WIDTH, columns - left)
        result = out[group, left : left + width]
        first, last = starts[group], starts[group + 1]
        n = last - first
        if n == 0:
            if finish == ADD:
                result[:] = base[group, left : left + width]
            continue
        blocks = -(-n // BLOCK)
        if blocks == 1:
            _sum_rows(x, strides, left, order[first:last], lanes, row, result)
        else:
            sums = np.empty((blocks, width), out.dtype)
            for block in range(blocks):
                rows = order[first + block * BLOCK : min(last, first + (block + 1) * BLOCK)]
                _sum_rows(x, strides, left, rows, lanes, row, sums[block])
            # A group of less than 2^32 rows has one level of blocks.
            _sum_rows(sums.reshape(-1), (width, 1), 0, np.arange(blocks), lanes, row, result)
        if finish == MEAN:
            for j in range(width):
                result[j] = divide(result[j], out.dtype.type(n))
        elif finish == ADD:
            for j in range(width):
                result[j] = base[group, left + j] + alpha * result[j]
    restore(state)


@njit
def _sum_rows(x, strides, left, rows, lanes, term, result):
    """result[j] = the SUM over `rows` (1 .. BLOCK of them) of column left + j."""
    width, n = result.size, rows.size
    for i in range(n):
        at = rows[i] * strides[0] + left * strides[1]
        lane, part = lanes[i % LANES, :width], term[:width]
        if i < LANES:
            load(lane, x, at, strides[1])
        else:
            load(part, x, at, strides[1])
            _add(lane, part)
    n, half = min(n, LANES), 1
    while 2 * half < n:
        half *= 2
    while half:
        for j in range(n - half):
            _add(lanes[j, :width], lanes[j + half, :width])
        n, half = min(n, half), half // 2
    result[:] = lanes[0, :width]


@njit
def _add(lanes, x):
    for j in range(x.size):
        lanes[j] += x[j]
