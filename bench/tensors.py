"""Operands and yardsticks that several benchmarks share."""

import torch
from torch import Tensor

from .registry import Run, Variant


def normal(device: torch.device, dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Normal deviates: zeros or constants would let a GPU clock higher than real data does."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def copy_of(traffic: int, device: torch.device) -> Variant:
    """A copy that reads and writes `traffic` bytes in all: what memory allows an operation of as many bytes."""

    def prepare(operands: object) -> Run:
        source = torch.randint(0, 256, (traffic // 2,), device=device, dtype=torch.uint8)
        target = torch.empty_like(source)
        return lambda i: target.copy_(source)

    return Variant(COPY, prepare)


COPY = "copy of as many bytes"
