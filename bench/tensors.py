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
        source = torch.randint(1 << 30, (traffic // 8,), device=device, dtype=torch.int32)
        target = torch.empty_like(source)
        # By a kernel: as a node of a graph, a copy of the driver's own takes up to half as long again.
        return lambda i: torch.bitwise_not(source, out=target)

    return Variant(COPY, prepare)


COPY = "copy of as many bytes"
