"""The library's functions under proof: Triton's on a GPU or in the interpreter, Numba's on a CPU, found by name."""

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

from repkernels.cpu import rounded as on_cpu
from repkernels.cpu import unary
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rounded import trigonometric
from repkernels.kernels import rounded as on_gpu
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded.trigonometric import sincospi
from repkernels.kernels.unary import elu

from .measure import number

SIZE = 1024


@triton.jit
def elu_of_one(x):
    return elu(x, tl.full([], 1.0, tl.float32))


@triton.jit
def sinpi(x):
    sine, cosine = sincospi(x)
    return sine


@triton.jit
def cospi(x):
    sine, cosine = sincospi(x)
    return cosine


@triton.jit
def apply_kernel(first, patterns, out, count, FUNCTION: tl.constexpr, LISTED: tl.constexpr, SIZE: tl.constexpr):
    """out[i]: the fp32 bits of the function at the fp32 number of bits first + i, or patterns[i] if LISTED; int32."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    bits = first + i
    if LISTED:
        bits = tl.load(patterns + i, mask=inside, other=0)
    tl.store(out + i, FUNCTION(number(bits)).to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def pairs_kernel(left, right, out, count, FUNCTION: tl.constexpr, SIZE: tl.constexpr):
    """out = FUNCTION(left, right), fp32."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    tl.store(out + i, FUNCTION(tl.load(left + i, mask=inside), tl.load(right + i, mask=inside)), mask=inside)


def results(name: str, bits: range | Tensor, device: torch.device) -> Tensor:
    """int32 bits, every NaN as one, of the device's own function at consecutive bit patterns or int64 ones listed."""
    return by_triton(name, bits, device) if device.type == "cuda" else by_numba(name, bits)


def by_triton(name: str, bits: range | Tensor, device: torch.device) -> Tensor:
    listed = isinstance(bits, Tensor)
    out = torch.empty(len(bits), dtype=torch.int32, device=device)
    patterns = bits.to(device) if isinstance(bits, Tensor) else torch.empty(1, dtype=torch.int64, device=device)
    function = BUILT_ON_GPU[name] if name in BUILT_ON_GPU else find(on_gpu, name)
    first = 0 if isinstance(bits, Tensor) else bits.start
    grid = (triton.cdiv(len(bits), SIZE),)
    launch(apply_kernel, grid, first, patterns, out, len(bits), FUNCTION=function, LISTED=listed, SIZE=SIZE)
    return one_nan(out)


def by_numba(name: str, bits: range | Tensor) -> Tensor:
    patterns = bits.numpy() if isinstance(bits, Tensor) else np.arange(bits.start, bits.stop)
    x = patterns.astype(np.uint32).view(np.float32)
    out = np.empty_like(x)
    _loop(name)(x, out)
    return one_nan(torch.from_numpy(out.view(np.int32)))


def pairs(name: str, x: np.ndarray, y: np.ndarray, device: torch.device) -> np.ndarray:
    """fp32 results of the device's own function of two fp32 numbers, elementwise over arrays of one length."""
    out = np.empty_like(x)
    if device.type == "cpu":
        _loop_of_pairs(name)(x, y, out)
        return out
    left, right, result = (torch.from_numpy(v).to(device) for v in (x, y, out))
    launch(
        pairs_kernel, (triton.cdiv(len(x), SIZE),), left, right, result, len(x), FUNCTION=find(on_gpu, name), SIZE=SIZE
    )
    return np.asarray(result.cpu())


def one_nan(bits: Tensor) -> Tensor:
    return torch.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)


def find(package: ModuleType, name: str) -> Any:
    """The compiled function of this name in one of the package's modules."""
    for info in pkgutil.iter_modules(package.__path__):
        function = getattr(importlib.import_module(f"{package.__name__}.{info.name}"), name, None)
        if hasattr(function, "fn") or hasattr(function, "py_func"):
            return function
    raise LookupError(f"{package.__name__} has no {name}")


# What is no function of one number in the library.
_elu, _sincospi, _one = unary.elu, trigonometric.sincospi, np.float32(1)
BUILT_ON_GPU: dict[str, Any] = {"elu": elu_of_one, "sinpi": sinpi, "cospi": cospi}
BUILT_ON_CPU: dict[str, Any] = {
    "elu": lambda x: _elu(x, _one),
    "sinpi": lambda x: _sincospi(x)[0],
    "cospi": lambda x: _sincospi(x)[1],
}
_loops: dict[str, Any] = {}


def _loop(name: str) -> Any:
    """A compiled loop over the CPU's function."""
    if name not in _loops:
        one = njit(BUILT_ON_CPU[name]) if name in BUILT_ON_CPU else find(on_cpu, name)

        @njit
        def loop(x, out):
            state = keep_subnormals()
            for i in range(x.size):
                out[i] = one(x[i])
            restore(state)

        _loops[name] = loop
    return _loops[name]


def _loop_of_pairs(name: str) -> Any:
    if name not in _loops:
        function = find(on_cpu, name)

        @njit
        def loop(x, y, out):
            state = keep_subnormals()
            for i in range(x.size):
                out[i] = function(x[i], y[i])
            restore(state)

        _loops[name] = loop
    return _loops[name]
