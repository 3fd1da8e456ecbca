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
    lanes = np.empty((LANES, WIDTH), out.dtype)
    for piece in range(start, stop):
        group, left = piece // tiles, piece % tiles * WIDTH
        width = min(WIDTH, columns - left)
        rows = order[starts[group] : starts[group + 1]]
        n = rows.size
        if n:
            _sum_rows(x, strides, left, rows, lanes, width)
        for j in range(width):
            total = lanes[0, j] if n else out.dtype.type(0)
            if finish == MEAN and n:
                total = divide(total, out.dtype.type(n))
            elif finish == ADD:
                total = base[group, left + j] + alpha * total if n else base[group, left + j]
            out[group, left + j] = total
    restore(state)


@njit
def _sum_rows(x, strides, left, rows, lanes, width):
    """lanes[0, j] = the SUM over `rows`, at least one, of column left + j, for j < width."""
    term = np.empty(width, x.dtype)
    while True:
        n = rows.size
        blocks = -(-n // BLOCK)
        sums = np.empty(blocks * width if blocks > 1 else 0, x.dtype)
        for block in range(blocks):
            top, bottom = block * BLOCK, min((block + 1) * BLOCK, n)
            for i in range(top, bottom):
                at = rows[i] * strides[0] + left * strides[1]
                lane = lanes[i % LANES, :width]
                part = lane if i < top + LANES else term
                load(part, x, at, strides[1])
                if i >= top + LANES:
                    _add(lane, part)
            _halve(lanes, min(bottom - top, LANES), width)
            if blocks > 1:
                for j in range(width):
                    sums[block * width + j] = lanes[0, j]
        if blocks == 1:
            break
        x, strides, left, rows = sums, (width, 1), 0, np.empty(blocks, np.int64)
        for block in range(blocks):
            rows[block] = block


@njit
def _halve(lanes, n, width):
    """lanes[0] = the sum of the first n lanes by halvings. A missing lane is -0: nothing to add."""
    half = 1
    while 2 * half < n:
        half *= 2
    while half:
        for j in range(n - half):
            _add(lanes[j, :width], lanes[j + half, :width])
        n, half = min(n, half), half // 2


@njit
def _add(lanes, x):
    for j in range(x.size):
        lanes[j] += x[j]
