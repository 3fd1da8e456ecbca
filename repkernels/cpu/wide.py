"""Whole tensors in the format they are computed in: kernels that see nothing else are compiled for two types only."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread


def compute_type(dtype: torch.dtype) -> Any:
    """binary64 for fp64, binary32 for the others."""
    return np.float64 if dtype == torch.float64 else np.float32


def widen(x: Tensor) -> np.ndarray:
    """x as a contiguous fp32 (fp64) array of its shape: exact. fp32 and fp64 that are contiguous are not copied."""
    x = x.contiguous()
    if x.dtype in (torch.float32, torch.float64):
        return numbers(x)
    wide = np.empty(x.shape, np.float32)
    spread(_widen, x.numel(), x.numel(), numbers(x).reshape(-1), wide.reshape(-1))
    return wide


def narrow(wide: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The contiguous array as a tensor of `dtype`, rounded once; its own memory where nothing is rounded."""
    if wide.dtype == compute_type(dtype) and dtype in (torch.float32, torch.float64):
        return torch.from_numpy(wide)
    out = torch.empty(wide.shape, dtype=dtype, device="cpu")
    spread(_narrow, wide.size, wide.size, wide.reshape(-1), numbers(out).reshape(-1))
    return out


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`, contiguous; between fp64 and a half type by way of fp32, as torch does."""
    wide = widen(x)
    if wide.dtype != compute_type(dtype):
        source, wide = wide, np.empty(wide.shape, compute_type(dtype))
        spread(_convert, wide.size, wide.size, source.reshape(-1), wide.reshape(-1))
    return narrow(wide, dtype)


@kernel
def _convert(start, stop, x, out):
    state = keep_subnormals()
    for i in range(start, stop):
        out[i] = x[i]
    restore(state)


@kernel
def _widen(start, stop, x, wide):
    state = keep_subnormals()
    for i in range(start, stop):
        wide[i] = widened(x[i])
    restore(state)


@kernel
def _narrow(start, stop, wide, out):
    state = keep_subnormals()
    for i in range(start, stop):
        put(out, i, wide[i])
    restore(state)
