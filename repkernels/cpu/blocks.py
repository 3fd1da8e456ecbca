"""Cutting a product into blocks of the result, and seeing torch's memory as Numba does."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.functions import numbers

# Below this many multiplications, or elements, a second thread costs more than it gives.
ALONE = 1 << 17


class Flat(NamedTuple):
    """A tensor as one contiguous 1-D array and strides in elements: kernels are compiled once for all layouts."""

    array: np.ndarray
    strides: tuple[int, ...]


class Block(NamedTuple):
    """Rows and columns of one product of the batch."""

    batch: int
    row: int
    rows: int
    column: int
    columns: int


def flat(x: Tensor) -> Flat:
    """The memory from x's first to its last element."""
    if x.is_contiguous():
        return Flat(numbers(x).reshape(-1), x.stride())
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return Flat(numbers(x.detach().as_strided((last + 1 if x.numel() else 0,), (1,))), x.stride())


def is_small(*sizes: int) -> bool:
    """Whether work of this many steps is best left to one thread."""
    return math.prod(sizes) < ALONE


def blocks(batch: int, m: int, n: int, k: int, most: tuple[int, int], unit: tuple[int, int]) -> list[Block]:
    """Blocks of the results (batch, m, n) of at most `most` rows and columns, cut at multiples of `unit`.

    They are made smaller until every thread has one, if there is enough to do.
    """
    rows, columns = min(most[0], m), min(most[1], n)
    small = is_small(batch, m, n, k)
    if small and (rows, columns) == (m, n):
        return [Block(i, 0, m, 0, n) for i in range(batch)]
    wanted = 1 if small else torch.get_num_threads()
    while batch * math.ceil(m / rows) * math.ceil(n / columns) < wanted:
        if columns > unit[1] and (columns >= rows or rows <= unit[0]):
            columns = math.ceil(columns / 2)
        elif rows > unit[0]:
            rows = math.ceil(rows / 2)
        else:
            break
    across, down = _cuts(n, columns, unit[1]), _cuts(m, rows, unit[0])
    return [Block(i, *r, *c) for i in range(batch) for c in across for r in down]


def _cuts(size: int, most: int, unit: int) -> list[tuple[int, int]]:
    """(start, length) of about equal pieces that cover `size`."""
    units = math.ceil(size / unit)
    pieces = math.ceil(size / max(most, 1))
    step = math.ceil(units / pieces) * unit
    return [(start, min(step, size - start)) for start in range(0, size, step)]
