"""Tensors of evenly spaced numbers, which torch computes in other formats on each device."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WHY = "torch computes the steps in binary64 on the CPU and in binary32 on a GPU"
Number = int | float


def arange(*bounds: Number, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    """start, start + step, ...: start + i * step in binary64, rounded to the dtype once; integers are torch's own."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1) if len(bounds) == 2 else bounds
    if dtype is None:
        dtype = torch.int64 if all(isinstance(v, int) for v in bounds) else torch.get_default_dtype()
    if not dtype.is_floating_point:
        return torch.arange(start, end, step, dtype=dtype, device=device)
    if step == 0 or (end - start) * step < 0:
        return torch.arange(start, end, step, dtype=dtype, device=device)  # empty, or torch's error
    count = math.ceil((end - start) / step)
    return (torch.arange(count, device=device).double() * step + start).to(dtype)


def linspace(
    start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> Tensor:
    """From start to end in binary64, the first half counted from start, the second from end, rounded once."""
    dtype = dtype or torch.get_default_dtype()
    start, end = float(start), float(end)
    place = torch.arange(steps, device=device)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    low = place.double() * step + start
    high = end - (steps - 1 - place).double() * step
    return torch.where(place < steps // 2, low, high if steps > 1 else low).to(dtype)


ATEN: dict[str, Callable[..., Any]] = {"arange": arange, "linspace": linspace}
