"""What one check starts, and memory that no kernel touches."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Case(NamedTuple):
    """A call, and the operand types that its products of tiles may have, and those that one must have.

    maximum: whether it may take the hardware's maximum, because no result shows which of two zeros it chose or that it
    lost a NaN.
    """

    name: str
    start: Callable[[], object]
    may: frozenset[str] = frozenset()
    need: frozenset[str] = frozenset()
    maximum: bool = False


def tensor(*shape: int, dtype: torch.dtype = torch.float32, odd: bool = False) -> Tensor:
    """Memory that is never touched; `odd` shifts it by one element, off every 16-byte border."""
    size = 1
    for length in shape:
        size *= length
    return torch.empty(size + odd, dtype=dtype)[int(odd) :].view(shape)
