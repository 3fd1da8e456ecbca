"""Grouped sums: short groups, long ones, blocks and the sums of blocks."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import grouped_sum
from tests.instructions.case import Case, everything, tensor


def _sum(dtype: torch.dtype, rows: int, groups: int, columns: int, finish: str, odd: bool = False) -> None:
    x = tensor(rows, columns, dtype=dtype, odd=odd)
    order, starts = tensor(rows, dtype=torch.int64), tensor(groups + 1, dtype=torch.int64)
    base = tensor(groups, columns, dtype=dtype, odd=odd) if finish == "add" else None
    grouped_sum.grouped_sum(x, order, starts, base, 0.5, finish == "mean", dtype)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield Case("grouped sum bf16", partial(_sum, torch.bfloat16, 70000, 512, 4096, "mean"))
    yield Case("grouped sum fp32 odd", partial(_sum, torch.float32, 70001, 333, 1, "add", odd=True))
    if everything(target):
        yield Case("grouped sum fp32", partial(_sum, torch.float32, 4096, 512, 1024, "sum"))
        yield Case("grouped sum fp64 odd", partial(_sum, torch.float64, 4097, 333, 7, "mean", odd=True))
