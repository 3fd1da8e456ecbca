"""Random numbers, dropout."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import dropout, multinomial, normal, random
from tests.instructions.case import Case, tensor

DRAW = (2**63 + 1, 2**40)


def _integers(rows: int) -> None:
    random.integers(tensor(4080, dtype=torch.int64), *DRAW, tensor(rows, dtype=torch.int64), 5)


def _below(each: int) -> None:
    random.below(tensor(4096, dtype=torch.bool), *DRAW, tensor(each, dtype=torch.int64))


def _dropout(dtype: torch.dtype, size: int, shift: float, inner: int, odd: bool = False) -> None:
    dropout.dropout(tensor(size, dtype=dtype, odd=odd), *DRAW, 1 << 31, 2.0, shift, 0.0, inner)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield Case("uniform, odd", lambda: random.uniform(tensor(4097, dtype=torch.bfloat16, odd=True), *DRAW, 0.1, 1.0))
    yield Case("normal", lambda: normal.normal(tensor(4096), *DRAW, 0.0, 1.0, 0))
    yield Case("integers of rows", partial(_integers, 5))
    yield Case("below each", partial(_below, 4096))
    yield Case("keys", lambda: random.keys(tensor(4096, dtype=torch.int64), *DRAW))
    yield Case("race", lambda: multinomial.race(tensor(4096, dtype=torch.int32), *DRAW, tensor(4096)))
    yield Case("dropout float32", partial(_dropout, torch.float32, 4096, 0.0, 1))
    yield Case("dropout bfloat16, shifted, odd", partial(_dropout, torch.bfloat16, 4097, 0.5, 1, odd=True))
    yield Case("dropout of channels", partial(_dropout, torch.float32, 4096, 0.0, 64))
