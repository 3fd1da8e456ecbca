"""Arithmetic whose bits differ between torch's devices: division, interpolation, sums with products or quotients.

SPEC.md, "Elementwise operations". Tensors are broadcast, and floating dtypes promoted, as torch does; the gradient of
a broadcast tensor is the SUM of the stored elementwise gradients over the axes along which it was broadcast.
"""

import functools

import torch
from torch import Tensor

from repkernels.ops import checks, derivatives  # noqa: F401  (the gradients' rules)
from repkernels.ops.convert import converted
from repkernels.ops.elementwise import elementwise
from repkernels.ops.unary import INTEGERS, argument

Number = int | float


def promoted(**operands: object) -> list[Tensor]:
    """The tensors in one floating dtype, torch.result_type's, and on one device; integers become fp32."""
    tensors = []
    for name, x in operands.items():
        checks.operand(name, x, (*checks.FLOATS, *INTEGERS))
        assert isinstance(x, Tensor)
        tensors.append(x)
    dtype = _common(tensors)
    if dtype in INTEGERS:
        dtype = torch.float32
    where = next((x.device for x in tensors if x.ndim or x.device.type != "cpu"), tensors[0].device)
    for name, x in zip(operands, tensors, strict=True):
        if x.device != where and (x.ndim or x.device.type != "cpu"):
            raise RuntimeError(f"{name}: on {x.device} but another operand is on {where}; move one of them")
    return [converted(x.to(where), dtype) for x in tensors]


def _common(tensors: list[Tensor]) -> torch.dtype:
    """torch's dtype for all: 0-d tensors count only where they are of a higher kind than the others."""
    of_rank = [[x.dtype for x in tensors if (x.ndim > 0) == ranked] for ranked in (True, False)]
    dtypes = [functools.reduce(torch.promote_types, group) for group in of_rank if group]
    if len(dtypes) == 1 or dtypes[0] == dtypes[1]:
        return dtypes[0]
    return torch.result_type(*(torch.empty((1,) * (1 - k), dtype=d, device="meta") for k, d in enumerate(dtypes)))


def _scalar(name: str, x: object) -> float:
    if isinstance(x, bool | int | float):
        return float(x)
    raise TypeError(f"{name}: expected a Tensor or a real number, got {type(x).__name__}")


def div(input: Tensor, other: Tensor | Number, *, rounding_mode: str | None = None) -> Tensor:
    """RN(input / other), for a tensor or a number `other`, which is rounded to the format of computation first.

    rounding_mode: None; "trunc", which drops the fraction of the rounded quotient; "floor", the floor of the quotient,
    NaN for an infinite dividend. input, other: fp32, half types, fp64; integers become fp32, or, where both are
    integers and rounded, torch's exact integer division.
    Gradients: RN(g / b) for a; -RN(g * RN(RN(a / b) / b)) for b; +0 with a rounding mode.
    Raises RuntimeError for another rounding_mode, NotImplementedError for complex tensors.
    """
    if rounding_mode not in (None, "floor", "trunc"):
        raise RuntimeError(f"rounding_mode: expected None, 'floor' or 'trunc', got {rounding_mode!r}")
    name = "div" if rounding_mode is None else f"div_{rounding_mode}"
    if not isinstance(other, Tensor):
        divisor = _scalar("other", other)
        if rounding_mode is not None and _integer(input) and not isinstance(other, float):
            return torch.div(input, other, rounding_mode=rounding_mode)
        (a,) = promoted(input=input)
        return elementwise(name, a, s=divisor)
    if rounding_mode is not None and _integer(input) and _integer(other):
        return torch.div(input, other, rounding_mode=rounding_mode)
    a, b = promoted(input=input, other=other)
    return elementwise(name, a, b)


def _integer(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in INTEGERS


def lerp(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    """start + weight * (end - start), so that weight 0 gives start and 1 gives end: torch.lerp.

    With d = RN(end - start): RN(start + RN(weight * d)) where |weight| < 0.5, otherwise
    RN(end - RN(d * RN(1 - weight))). input, end, weight: one floating dtype, or a number as weight.
    Gradients: RN(g * RN(1 - weight)), RN(g * weight), RN(g * RN(end - start)).
    Raises RuntimeError for dtypes that differ.
    """
    tensors = {"input": input, "end": end}
    if isinstance(weight, Tensor):
        tensors["weight"] = weight
    for name, x in tensors.items():
        checks.operand(name, x)
        if x.dtype != input.dtype:
            raise RuntimeError(f"{name}: dtype {x.dtype} differs from input's {input.dtype}; convert one of them")
    if isinstance(weight, Tensor):
        return elementwise("lerp", *promoted(**tensors))
    return elementwise("lerp", *promoted(**tensors), s=_scalar("weight", weight))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """RN(input + RN(RN(value * tensor1) * tensor2)). Floating tensors; promoted, broadcast.

    Gradients: g; RN(g * RN(value * tensor2)); RN(g * RN(value * tensor1)).
    """
    return _with_value("addcmul", input, tensor1, tensor2, value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """RN(input + RN(value * RN(tensor1 / tensor2))). Floating tensors; promoted, broadcast.

    Gradients: g; RN(g * RN(value / tensor2)); -RN(g * RN(value * RN(RN(tensor1 / tensor2) / tensor2))).
    """
    return _with_value("addcdiv", input, tensor1, tensor2, value)


def _with_value(name: str, input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number) -> Tensor:
    tensors = {"input": input, "tensor1": tensor1, "tensor2": tensor2}
    for each, x in tensors.items():
        checks.operand(each, x)
    return elementwise(name, *promoted(**tensors), s=_scalar("value", value))


def pow(input: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """RN(x^y), correctly rounded, of a tensor and a tensor or number, either way round; fp32 and half types.

    Numbers are rounded to fp32 first; integer tensors become fp32, as do half types under autocast.
    Gradients: RN(g * RN(y * RN(x^RN(y - 1)))), +0 where y = 0; of y: RN(g * RN(RN(x^y) * RN(ln x))), +0 where x = 0 and
    y >= 0. Raises NotImplementedError for fp64, TypeError if neither is a tensor.
    """
    given = {"input": input, "exponent": exponent}
    tensors = {name: argument(x, True, name) for name, x in given.items() if isinstance(x, Tensor)}
    if not tensors:
        raise TypeError(f"input: expected a Tensor, got {type(input).__name__}, and exponent is none either")
    if len(tensors) == 2:
        return elementwise("pow", *promoted(**tensors))
    if "input" in tensors:
        return elementwise("pow", tensors["input"], s=_scalar("exponent", exponent))
    return elementwise("pow_base", tensors["exponent"], s=_scalar("input", input))
