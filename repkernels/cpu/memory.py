"""Strided tensors as the memory they cover, in the format that is computed in.

Kernels then see one layout and two types, so that few versions are compiled, and contiguous parts that vectorise.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.functions import numbers
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import _narrow


def widened(x: Tensor) -> Tensor:
    """x in fp32, or fp64 as it is: a copy of half types, exact."""
    return x if x.dtype == torch.float64 else x.float()


def memory(x: Tensor) -> np.ndarray:
    """The memory that x (fp32, fp64) covers, 1-D: element (i, j, ...) is at the sum of index * stride."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return numbers(x.as_strided((last + 1 if x.numel() else 0,), (1,)))


def like(out: Tensor) -> Tensor:
    """What a kernel writes in place of `out`, which lies densely: a wide tensor of its strides, for `narrow_to`."""
    if out.dtype in (torch.float32, torch.float64):
        return out
    return torch.empty_strided(out.shape, out.stride(), dtype=torch.float32, device=out.device)


def narrow_to(out: Tensor, wide: Tensor) -> None:
    """out = wide, rounded once; nothing where they are one."""
    if out is not wide:
        n = out.numel()
        spread(_narrow, n, n, memory(wide), numbers(out.as_strided((n,), (1,))))


@njit
def load(out, x, at, stride):
    """out[j] = x[at + j * stride]. No slice is assigned, here or below: Numba would compile its error for seconds."""
    if stride == 1:
        source = x[at : at + out.size]
        for j in range(out.size):
            out[j] = source[j]
    else:
        for j in range(out.size):
            out[j] = x[at + j * stride]


@njit
def load_rows(out, x, at, first, sizes, strides):
    """out[j] = row `first + j` of the column that starts at x[at], of a tensor (R1, R2, N1, N2)."""
    inner, done = sizes[1], 0
    while done < out.size:
        outer = first // inner
        n = min(out.size - done, (outer + 1) * inner - first)
        load(out[done : done + n], x, at + outer * strides[0] + (first - outer * inner) * strides[1], strides[1])
        first += n
        done += n


@njit
def store(out, at, stride, v):
    """out[at + j * stride] = v[j]."""
    if stride == 1:
        target = out[at : at + v.size]
        for j in range(v.size):
            target[j] = v[j]
    else:
        for j in range(v.size):
            out[at + j * stride] = v[j]
