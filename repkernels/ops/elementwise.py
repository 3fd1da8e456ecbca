"""Every elementwise operation as one custom op (SPEC.md, "Elementwise operations").

A name says which function; the same names stand in the tables of kernels/ and cpu/. `RULES` says what of a call its
gradient needs, and the gradient of each operand: ops/derivatives.py fills it.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum_rows

Gradient = Callable[[Tensor, Any], Tensor]


class Rule(NamedTuple):
    """What a gradient reads, of the operands a, b, c and the result y, as letters; and each operand's gradient.

    A gradient takes that of the result and the call's a, b, c, y, s, t, of which only `reads` and s, t are there.
    """

    reads: str
    gradients: tuple[Gradient, ...]


RULES: dict[str, Rule] = {}


def _run(a: Tensor, b: Tensor | None, c: Tensor | None, name: str, s: float, t: float) -> Tensor:
    operands = [x for x in (a, b, c) if x is not None]
    s, t = (in_format(x, a.dtype) for x in (s, t))
    out = _result(operands)
    backend("elementwise", checks.device_type(out)).elementwise(name, operands, (s, t), out)
    return out


def _fake(a: Tensor, b: Tensor | None, c: Tensor | None, name: str, s: float, t: float) -> Tensor:
    return _result([x for x in (a, b, c) if x is not None])


def _result(operands: list[Tensor]) -> Tensor:
    """The result's memory: the axes in the order of the first operand that has its shape, without gaps."""
    shape = operands[0].shape
    if any(x.shape != shape for x in operands):
        shape = torch.broadcast_shapes(*(x.shape for x in operands))
    for x in operands:
        if x.shape == shape:
            return torch.empty_like(x)
    return operands[0].new_empty(shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, c, ctx.name, ctx.s, ctx.t = inputs
    ctx.shapes = [None if x is None else x.shape for x in (a, b, c)]
    ctx.reads = [letter for letter in RULES[ctx.name].reads if letter == "y" or inputs["abc".index(letter)] is not None]
    ctx.save_for_backward(*({"a": a, "b": b, "c": c, "y": output}[letter] for letter in ctx.reads))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    call = SimpleNamespace(a=None, b=None, c=None, y=None, s=ctx.s, t=ctx.t)
    vars(call).update(zip(ctx.reads, ctx.saved_tensors, strict=True))
    gradients = RULES[ctx.name].gradients
    results: list[Tensor | None] = [None] * 6
    for k, shape in enumerate(ctx.shapes):
        if shape is not None and ctx.needs_input_grad[k]:
            results[k] = summed(gradients[k](grad, call), shape)
    return tuple(results)


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    dims = in_dims[:3]
    rank = max(x.ndim - (d is not None) for x, d in zip(args[:3], dims, strict=True) if x is not None)
    moved = [
        x if d is None else x.movedim(d, 0)[(slice(None), *[None] * (rank - x.ndim + 1))]
        for x, d in zip(args[:3], dims, strict=True)
    ]
    return _elementwise(*moved, *args[3:]), 0


_elementwise = operation("elementwise", _run, _fake, _setup_context, _backward, _vmap)


def elementwise(
    name: str, a: Tensor, b: Tensor | None = None, c: Tensor | None = None, *, s: float = 0.0, t: float = 0.0
) -> Tensor:
    """The function `name` of one to three tensors of one dtype, broadcast, and of the scalars that it takes.

    s, t: binary64, rounded here to the format of computation. The result lies in memory as the first operand that has
    its shape.
    """
    s, t = in_format(s, a.dtype), in_format(t, a.dtype)
    return _elementwise(a, b, c, name, s, t)


def in_format(x: float, dtype: torch.dtype) -> float:
    """x rounded to the format in which operands of `dtype` are computed.

    Not under a compiler, where it can be a symbol: operations round their scalars again when they run.
    """
    if not x or dtype == torch.float64 or torch.compiler.is_compiling() or isinstance(x, torch.SymFloat):
        return x
    return rounded(x)


def rounded(x: float) -> float:
    """RN32(x), by integers: nothing flushes them."""
    if x == 0 or x != x or math.isinf(x):
        return x
    exponent = max(math.frexp(x)[1] - 24, -149)
    near = math.ldexp(round(math.ldexp(x, -exponent)), exponent)
    return math.copysign(math.inf, x) if abs(near) >= 2.0**128 else near


def summed(x: Tensor, shape: torch.Size) -> Tensor:
    """The SUM of x over the axes along which an operand of this shape was broadcast, flattened row-major."""
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    kept = [lead + d for d, n in enumerate(shape) if n == x.shape[lead + d]]
    gone = [d for d in range(x.ndim) if d not in kept]
    rows, columns = math.prod(x.shape[d] for d in gone), math.prod(x.shape[d] for d in kept)
    return sum_rows(x.permute(*gone, *kept).reshape(rows, columns)).view(shape)
