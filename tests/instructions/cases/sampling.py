"""Sampling: rows of one chunk and of several, each filter."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import sample
from tests.instructions.case import Case, everything, tensor


def _sample(classes: int, dtype: torch.dtype, odd: bool = False) -> None:
    logits, e = tensor(3, classes, dtype=dtype, odd=odd), tensor(3, classes)
    one, number = tensor(3), tensor(3, dtype=torch.int64)
    sample.sample(logits, one, number, one, one, number, number, number)
    sample.scaled_logits(logits, one, e)
    sample.penalised(logits, tensor(3, classes, dtype=torch.int32), one, one, one)


def _least_only() -> None:
    one, number = tensor(3), tensor(3, dtype=torch.int64)
    sample.sample(tensor(3, 4096), one, None, None, one, number, number, number)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield Case("sample bfloat16, odd", partial(_sample, 20001, torch.bfloat16, odd=True))
    if everything(target):
        yield Case("sample float32", partial(_sample, 8192, torch.float32))
        yield Case("sample, min_p alone", _least_only)
