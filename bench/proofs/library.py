"""The library's functions under proof: Triton's on a GPU, Numba's on a CPU, found by their names."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numba import njit
from torch import Tensor

import repkernels.cpu.rounded
import repkernels.kernels.rounded
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded import exponential

from .double_double import constant
from .measure import number

SIZE = 1024


@triton.jit
def elu_of_one(x):
    return exponential.elu(x, constant(1.0))


@triton.jit
def apply_kernel(first, patterns, out, count, FUNCTION: tl.constexpr, LISTED: tl.constexpr, SIZE: tl.constexpr):
    """out[i]: the fp32 bits of the function at the fp32 number of bits first + i, or patterns[i] if LISTED; int32."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    bits = first + i
    if LISTED:
        bits = tl.load(patterns + i, mask=inside, other=0)
    tl.store(out + i, FUNCTION(number(bits)).to(tl.int32, bitcast=True), mask=inside)


def results(name: str, bits: range | Tensor, device: torch.device) -> Tensor:
    """int32 bits, every NaN as one, of the library's function at consecutive bit patterns or int64 ones listed."""
    found = _on_gpu(name, bits, device) if device.type == "cuda" else _on_cpu(name, bits)
    return torch.where((found & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, found)


def _on_gpu(name: str, bits: range | Tensor, device: torch.device) -> Tensor:
    listed = isinstance(bits, Tensor)
    out = torch.empty(len(bits), dtype=torch.int32, device=device)
    patterns = bits.to(device) if isinstance(bits, Tensor) else torch.empty(1, dtype=torch.int64, device=device)
    function = elu_of_one if name == "elu" else find(repkernels.kernels.rounded, name)
    first = 0 if isinstance(bits, Tensor) else bits.start
    grid = (triton.cdiv(len(bits), SIZE),)
    launch(apply_kernel, grid, first, patterns, out, len(bits), FUNCTION=function, LISTED=listed, SIZE=SIZE)
    return out


def _on_cpu(name: str, bits: range | Tensor) -> Tensor:
    patterns = bits.numpy() if isinstance(bits, Tensor) else np.arange(bits.start, bits.stop)
    x = patterns.astype(np.uint32).view(np.float32)
    out = np.empty_like(x)
    _loop(name)(x, out)
    return torch.from_numpy(out.view(np.int32))


def _loop(name: str) -> Any:
    """A compiled loop over the CPU's function."""
    if name not in _loops:
        function = find(repkernels.cpu.rounded, name)
        one = njit(lambda x: function(x, 1.0)) if name == "elu" else function

        @njit
        def loop(x, out):  # type: ignore[no-untyped-def]
            state = keep_subnormals()
            for i in range(x.size):
                out[i] = one(x[i])
            restore(state)

        _loops[name] = loop
    return _loops[name]


_loops: dict[str, Any] = {}


def find(package: ModuleType, name: str) -> Any:
    """The function of this name in one of the package's modules."""
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        function = getattr(module, name, None)
        # A module may import another's function: any of them is the same.
        if function is not None:
            return function
    raise LookupError(f"{package.__name__} has no {name}")
