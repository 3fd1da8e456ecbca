"""Elementwise operations on the CPU: one loop, compiled for each function (SPEC.md, "Elementwise operations").

A function is compiled for fp32, and for fp64 where it has that; half types are widened and rounded piece by piece.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu import activations, arithmetic, derivatives, gated, unary
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.threads import buffer
from repkernels.subnormals import subnormals_kept

FUNCTIONS = unary.FUNCTIONS | activations.FUNCTIONS | derivatives.FUNCTIONS | arithmetic.FUNCTIONS | gated.FUNCTIONS
# Elements widened at a time: three operands and a result stay in the cache of a core.
PIECE = 1 << 14

# By the numbers of operands and of scalars: the function as one of three operands and two scalars.
_CALLS: dict[tuple[int, int], Callable[[Any], Callable[..., Any]]] = {
    (1, 0): lambda f: lambda a, b, c, s, t: f(a),
    (1, 1): lambda f: lambda a, b, c, s, t: f(a, s),
    (1, 2): lambda f: lambda a, b, c, s, t: f(a, s, t),
    (2, 0): lambda f: lambda a, b, c, s, t: f(a, b),
    (2, 1): lambda f: lambda a, b, c, s, t: f(a, b, s),
    (2, 2): lambda f: lambda a, b, c, s, t: f(a, b, s, t),
    (3, 0): lambda f: lambda a, b, c, s, t: f(a, b, c),
    (3, 1): lambda f: lambda a, b, c, s, t: f(a, b, c, s),
}


def elementwise(name: str, operands: Sequence[Tensor], scalars: Sequence[float], out: Tensor) -> None:
    """out = FUNCTIONS[name](*operands, *scalars), computed in fp32 (fp64 for fp64), rounded once to out's dtype.

    operands: one to three of one dtype, each broadcast to out's shape, any strides. out: without gaps, in any order
    of its axes. scalars: binary64 numbers that out's format of computation has; as many as the function takes are used.
    """
    arrays = [numbers(_in_order(x, out)) for x in operands]
    loop = _loop(gated.HALF.get((name, out.dtype), name), len(operands))
    with subnormals_kept():
        # In memory, since Numba rounds an fp32 argument once more, on the calling thread.
        kept = np.array([*scalars, 0, 0], np.float64 if out.dtype == torch.float64 else np.float32)
    work = out.numel() * (len(arrays) + 1)
    if out.dtype in (torch.float32, torch.float64):
        spread(loop, out.numel(), work, *(*arrays, *arrays[:1] * 2)[:3], kept, numbers(_flat(out)))
    else:
        spread(_by_pieces, out.numel(), work, loop, arrays, kept, numbers(_flat(out)))


def _in_order(x: Tensor, out: Tensor) -> Tensor:
    """The elements of x, broadcast, in the order of out's memory."""
    if x.shape != out.shape or any(
        n != 1 and a != b for n, a, b in zip(out.shape, x.stride(), out.stride(), strict=True)
    ):
        x = torch.empty_like(out, dtype=x.dtype).copy_(x)
    return _flat(x)


def _flat(x: Tensor) -> Tensor:
    return x.detach().as_strided((x.numel(),), (1,))


@functools.cache
def _loop(name: str, operands: int) -> Any:
    """`_template` for the function of this name, under a name of its own, by which Numba keeps what it compiled."""
    function = FUNCTIONS[name]
    parameters = len(inspect.signature(getattr(function, "py_func", function)).parameters)
    call = activations.inlined(_CALLS[operands, parameters - operands](function))
    own = FunctionType(_template.__code__, {**globals(), "call": call}, f"{name}_of_{operands}")
    own.__qualname__ = own.__name__
    return kernel(own)


def _template(start, stop, a, b, c, scalars, out):
    state = keep_subnormals()
    s, t = scalars[0], scalars[1]
    for i in range(start, stop):
        out[i] = call(a[i], b[i], c[i], s, t)  # noqa: F821
    restore(state)


def _by_pieces(start: int, stop: int, loop: Any, arrays: list[np.ndarray], scalars: np.ndarray, out: np.ndarray) -> Any:
    wide = [buffer(f"elementwise {k}", PIECE, np.float32) for k in range(len(arrays))]
    result = buffer("elementwise result", PIECE, np.float32)
    for first in range(start, stop, PIECE):
        count = min(PIECE, stop - first)
        for x, into in zip(arrays, wide, strict=True):
            _widen(first, count, x, into)
        loop(0, count, *(*wide, *wide[:1] * 2)[:3], scalars, result)
        _narrow(first, count, result, out)


@kernel
def _widen(first, count, x, into):
    state = keep_subnormals()
    for i in range(count):
        into[i] = widened(x[first + i])
    restore(state)


@kernel
def _narrow(first, count, result, out):
    state = keep_subnormals()
    for i in range(count):
        put(out, first + i, result[i])
    restore(state)
