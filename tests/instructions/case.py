"""What one check starts, and memory that no kernel touches."""

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Set by --few, for the processes that check.
FEW = "REPKERNELS_FEW_VARIANTS"


class Case(NamedTuple):
    """A call, and the operand types that its products of tiles may have, and those that one must have.

    maximum: whether it may take the hardware's maximum, because no result shows which of two zeros it chose or that it
    lost a NaN. exp2: whether it may take the hardware's, as `native` attention does.
    """

    name: str
    start: Callable[[], object]
    may: frozenset[str] = frozenset()
    need: frozenset[str] = frozenset()
    maximum: bool = False
    exp2: bool = False


def everything(target: str) -> bool:
    """Whether each variant of a kernel is checked on `target`; a few of them are on the others."""
    return target == "sm_90" and not few()


def few() -> bool:
    """Whether kernels that take long to compile are left to another run."""
    return bool(os.environ.get(FEW))


def tensor(*shape: int, dtype: torch.dtype = torch.float32, odd: bool = False) -> Tensor:
    """Memory that is never touched; `odd` shifts it by one element, off every 16-byte border."""
    size = 1
    for length in shape:
        size *= length
    return torch.empty(size + odd, dtype=dtype)[int(odd) :].view(shape)
