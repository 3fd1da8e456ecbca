"""Elementwise operations on a GPU: one kernel, with the function as a constant (SPEC.md, "Elementwise operations")."""

import functools
import inspect
import struct
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels import activations, arithmetic, derivatives, gated, unary
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.overlap import begin
from repkernels.kernels.sizes import cdiv

FUNCTIONS = unary.FUNCTIONS | activations.FUNCTIONS | derivatives.FUNCTIONS | arithmetic.FUNCTIONS | gated.FUNCTIONS
HALF = unary.HALF | gated.HALF
# Bytes of the result that a program writes.
BYTES = 4096
# Sizes and strides that a kernel takes; what has more axes, after neighbours are joined, is copied.
AXES = 4


@triton.jit
def scalar(bits, WIDE: tl.constexpr):
    """The number whose binary64 bits these are; it has no more digits than WIDE."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(WIDE)


@triton.jit
def apply(FUNCTION: tl.constexpr, a, b, c, s, t, OPERANDS: tl.constexpr, SCALARS: tl.constexpr, WIDE: tl.constexpr):
    """FUNCTION of as many of a, b, c and of the scalars whose bits are s, t as it takes."""
    if OPERANDS == 1:
        if SCALARS == 0:
            r = FUNCTION(a)
        elif SCALARS == 1:
            r = FUNCTION(a, scalar(s, WIDE))
        else:
            r = FUNCTION(a, scalar(s, WIDE), scalar(t, WIDE))
    elif OPERANDS == 2:
        if SCALARS == 0:
            r = FUNCTION(a, b)
        elif SCALARS == 1:
            r = FUNCTION(a, b, scalar(s, WIDE))
        else:
            r = FUNCTION(a, b, scalar(s, WIDE), scalar(t, WIDE))
    elif SCALARS == 0:
        r = FUNCTION(a, b, c)
    else:
        r = FUNCTION(a, b, c, scalar(s, WIDE))
    return r


@triton.jit(do_not_specialize=["s", "t"])
def flat_kernel(
    a, b, c, out, n, s, t, FUNCTION: tl.constexpr, OPERANDS: tl.constexpr, SCALARS: tl.constexpr, WIDE: tl.constexpr,
    SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Operands and result that lie in memory alike, without gaps."""
    begin(OVERLAP)
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = i < n
    x = tl.load(a + i, mask=mask).to(WIDE)
    y = x if OPERANDS < 2 else tl.load(b + i, mask=mask).to(WIDE)
    z = x if OPERANDS < 3 else tl.load(c + i, mask=mask).to(WIDE)
    r = apply(FUNCTION, x, y, z, s, t, OPERANDS, SCALARS, WIDE)
    tl.store(out + i, r.to(out.dtype.element_ty), mask=mask)


@triton.jit
def place(i, n1, n2, n3, s0, s1, s2, s3):
    """Where the element number i of an array (..., n1, n2, n3), in its order, lies in an operand of these strides."""
    i3, i = i % n3, i // n3
    i2, i = i % n2, i // n2
    return (i // n1) * s0 + (i % n1) * s1 + i2 * s2 + i3 * s3


@triton.jit(do_not_specialize=["s", "t"])
def strided_kernel(
    a, b, c, out, n, n1, n2, n3, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, s, t, FUNCTION: tl.constexpr,
    OPERANDS: tl.constexpr, SCALARS: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Operands of any strides, as their axes are in a result without gaps."""
    i = tl.program_id(0).to(INDEX) * SIZE + tl.arange(0, SIZE)
    mask = i < n
    x = tl.load(a + place(i, n1, n2, n3, a0, a1, a2, a3), mask=mask).to(WIDE)
    y = x if OPERANDS < 2 else tl.load(b + place(i, n1, n2, n3, b0, b1, b2, b3), mask=mask).to(WIDE)
    z = x if OPERANDS < 3 else tl.load(c + place(i, n1, n2, n3, c0, c1, c2, c3), mask=mask).to(WIDE)
    r = apply(FUNCTION, x, y, z, s, t, OPERANDS, SCALARS, WIDE)
    tl.store(out + i, r.to(out.dtype.element_ty), mask=mask)


def elementwise(name: str, operands: Sequence[Tensor], scalars: Sequence[float], out: Tensor) -> None:
    """out = FUNCTIONS[name](*operands, *scalars), computed in fp32 (fp64 for fp64), rounded once to out's dtype.

    operands: one to three of one dtype, each broadcast to out's shape, any strides. out: without gaps, in any order
    of its axes. scalars: binary64 numbers that out's format of computation has; as many as the function takes are used.
    """
    if out.numel() == 0:
        return
    sizes, strides = _joined(out, operands)
    if len(sizes) > AXES:
        operands = [torch.empty_like(out, dtype=x.dtype).copy_(x) for x in operands]
        sizes, strides = _joined(out, operands)
    three = [*operands, operands[0], operands[0]][:3]
    wide = tl.float64 if out.dtype == torch.float64 else tl.float32
    bits = struct.unpack("<2q", struct.pack("<2d", *(*scalars, 0.0, 0.0)[:2]))
    function, size = _function(name, out.dtype), BYTES // out.element_size()
    constants = {
        "FUNCTION": function, "OPERANDS": len(operands), "SCALARS": _parameters(function) - len(operands),
        "WIDE": wide, "SIZE": size,
    }  # fmt: skip
    grid = (cdiv(out.numel(), size),)
    if all(each == [1] for each in strides):
        overlap = can_overlap(out.device)
        launch(flat_kernel, grid, *three, out, out.numel(), *bits, OVERLAP=overlap, overlap=overlap, **constants)
        return
    furthest = max(sum((n - 1) * abs(s) for n, s in zip(sizes, each, strict=True)) for each in strides)
    constants["INDEX"] = tl.int32 if max(furthest, out.numel() + size) < 2**31 else tl.int64
    missing = AXES - len(sizes)
    padded = [stride for each in (*strides, *strides[:1] * 2)[:3] for stride in (*[0] * missing, *each)]
    sizes = [1] * missing + sizes
    launch(strided_kernel, grid, *three, out, out.numel(), *sizes[1:], *padded, *bits, **constants)


def _joined(out: Tensor, operands: Sequence[Tensor]) -> tuple[list[int], list[list[int]]]:
    """The axes of `out` from the outermost in memory, neighbours joined where every operand allows: sizes, strides."""
    wide = [x.expand(out.shape).stride() for x in operands]
    axes = sorted((d for d in range(out.ndim) if out.shape[d] != 1), key=lambda d: -out.stride()[d])
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for d in axes:
        if sizes and all(have[-1] == x[d] * out.shape[d] for have, x in zip(strides, wide, strict=True)):
            sizes[-1] *= out.shape[d]
            for have, x in zip(strides, wide, strict=True):
                have[-1] = x[d]
        else:
            sizes.append(out.shape[d])
            for have, x in zip(strides, wide, strict=True):
                have.append(x[d])
    return (sizes, strides) if sizes else ([1], [[1] for _ in operands])


def _function(name: str, dtype: torch.dtype) -> Any:
    """The function, or the one for a half type: with its roundings, or with the same results and less work."""
    return HALF.get((name, dtype), FUNCTIONS[name])


@functools.cache
def _parameters(function: Any) -> int:
    return len(inspect.signature(function.fn).parameters)
