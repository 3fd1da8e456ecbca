"""softmax and log_softmax."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import softmax
from tests.instructions.case import Case, everything, tensor


def _softmax(dtype: torch.dtype, columns: int, log: bool, odd: bool = False) -> None:
    x = tensor(64, columns, dtype=dtype, odd=odd)
    y = softmax.softmax(x, log)
    softmax.softmax_backward(x, y, log)


def cases(target: str) -> Iterator[Case]:
    """Rows of one chunk, of several, and longer than registers hold."""

    def case(what: str, *args: object) -> Case:
        # A NaN that the maximum loses makes the SUM NaN; which zero it takes does not show.
        return Case(f"softmax {what}", partial(_softmax, *args), maximum=True)

    yield case("bfloat16", torch.bfloat16, 1024, False)
    yield case("log, odd", torch.float16, 77, True, True)
    yield case("several chunks", torch.float32, 4096, everything(target))
    yield case("long, odd", torch.bfloat16, 70001, False, True)
    if everything(target):
        yield case("long", torch.float32, 32768, True)
        yield case("most chunks", torch.bfloat16, 16384, False)
