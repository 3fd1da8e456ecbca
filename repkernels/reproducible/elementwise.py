"""Elementwise functions, below autograd."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.reproducible import library
from repkernels.reproducible.gradients import gradients

WHY = "torch computes it by other instructions or another library on each device"
_HALF = (torch.bfloat16, torch.float16)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SUMS = ("add", "sub", "subtract", "rsub")
Number = int | float


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """torch.softmax."""
    return functional.softmax(input, dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """torch.log_softmax."""
    return functional.log_softmax(input, dim, dtype=dtype)


def square(input: Tensor) -> Tensor:
    """x * x, rounded once."""
    return input * input


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """min where x < min, then max where that is > max; NaN and the zeros of x stay. Choices, with their gradient."""
    if min is None and max is None:
        raise TypeError("clamp: at least one of min and max must be given")
    like = [v for v in (min, max) if v is not None]
    dtype = torch.result_type(input, like[0])
    if len(like) == 2:
        dtype = torch.promote_types(dtype, torch.result_type(input, like[1]))
    x = input.to(dtype)
    for bound, below in ((min, True), (max, False)):
        if bound is None:
            continue
        limit = bound if isinstance(bound, Tensor) else torch.full((), bound, dtype=dtype, device=x.device)
        limit = limit.to(dtype)
        x = torch.where(x < limit if below else x > limit, limit, x)
    return x


def _wide(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALF else x


def _result(input: Any, other: Any) -> torch.dtype:
    return torch.result_type(input, other)


def _add(input: Tensor, other: Any, alpha: Number = 1) -> Tensor:
    return _sum(input, other, alpha, torch.add)


def _subtract(input: Tensor, other: Any, alpha: Number = 1) -> Tensor:
    return _sum(input, other, alpha, torch.sub)


def _rsub(input: Tensor, other: Any, alpha: Number = 1) -> Tensor:
    if alpha != 1:
        input = input * alpha
    return _sum(other if isinstance(other, Tensor) else input.new_full((), other), input, 1, torch.sub)


def _sum(input: Tensor, other: Any, alpha: Number, function: Callable[..., Tensor]) -> Tensor:
    """input +- alpha * other, the product rounded first; half types are widened once and rounded once.

    torch contracts the product and the sum, and rounds a number beside a half tensor to its type on the CPU alone.
    """
    dtype = _result(input, other)
    if dtype in _HALF:
        input, other = _wide(input), _wide(other)
    if alpha != 1:
        other = other * alpha
    return function(input, other).to(dtype)


def _compare(name: str) -> Callable[..., Tensor]:
    """A comparison: a number beside a half tensor is rounded to its type, as torch does on the CPU alone."""
    function = getattr(torch, name)

    def call(input: Tensor, other: Any) -> Tensor:
        if not isinstance(other, Tensor) and input.dtype in _HALF:
            other = torch.tensor(other, dtype=input.dtype).item()
        return function(input, other)

    return call


def is_one_operation(name: str, args: Any, kwargs: Any) -> bool:
    """Whether this call of a sum, comparison or quotient is one IEEE operation, which torch computes alike anywhere.

    A number beside a half tensor is taken as it is or rounded first, by device; one beside a quotient is inverted.
    """
    if name not in (*SUMS, *COMPARISONS, "div", "divide", "true_divide") or len(args) < 2:
        return False
    tensors = [x for x in args[:2] if isinstance(x, Tensor) and x.ndim]
    if name not in SUMS + COMPARISONS:
        return len(tensors) == 2 and kwargs.get("rounding_mode") is None
    if kwargs.get("alpha", args[2] if len(args) > 2 else 1) != 1:
        return False
    halves = [x.dtype for x in tensors if x.dtype in _HALF]
    others = [x for x in args[:2] if not isinstance(x, Tensor) or not x.ndim]
    return not halves or all(_held(x, halves[0]) for x in others)


def _held(x: Any, dtype: torch.dtype) -> bool:
    """Whether a half type holds this number; of a tensor, whether it is of that type."""
    return x.dtype == dtype if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype).item() == x


def _sqrt(input: Tensor) -> Tensor:
    if input.dtype != torch.float64:
        return library.sqrt(input)
    if not input.is_cpu:
        return torch.sqrt(input)  # an instruction that rounds correctly
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.sqrt(input.detach().resolve_neg().numpy()))


def _div(input: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    return library.div(input, other, rounding_mode=rounding_mode)


def _floor_divide(input: Tensor, other: Any) -> Tensor:
    return library.div(input, other, rounding_mode="floor")


def _pow(input: Any, exponent: Any) -> Tensor:
    tensors = [x for x in (input, exponent) if isinstance(x, Tensor)]
    if tensors[0].dtype == torch.float64 and exponent == 2:
        return input * input
    return library.pow(input, exponent)


def _elu(input: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    if (alpha, scale, input_scale) == (_SELU_ALPHA, _SELU_SCALE, 1):
        return functional.selu(input)
    if scale != 1 or (input_scale != 1 and input_scale * alpha != 1):
        raise NotImplementedError("elu with a scale is not supported")
    return functional.celu(input, alpha) if input_scale != 1 else functional.elu(input, alpha)


_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(input, approximate=approximate)


def _log_sigmoid(input: Tensor) -> tuple[Tensor, Tensor]:
    return functional.logsigmoid(input), input.new_empty(0)


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    return torch.where(input > 0, input, input * weight)


def _softmax(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return functional.softmax(input, dim, dtype=torch.float32 if half_to_float else None)


def _log_softmax(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return functional.log_softmax(input, dim, dtype=torch.float32 if half_to_float else None)


def _softmax_backward(log: bool) -> Callable[..., Tensor]:
    from repkernels.ops.softmax import _gradient

    def call(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
        if output.ndim == 0 or not output.numel():
            return torch.zeros_like(output).to(input_dtype)
        g, y = (x.movedim(dim, -1) for x in (grad_output, output))
        rows = _gradient(g.reshape(-1, g.shape[-1]), y.reshape(-1, y.shape[-1]), log)
        return rows.view(g.shape).movedim(-1, dim).contiguous().to(input_dtype)

    return call


def _sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    g, y = _wide(grad_output), _wide(output)
    return (g * ((1 - y) * y)).to(grad_output.dtype)


def _tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    g, y = _wide(grad_output), _wide(output)
    return (g * (1 - y * y)).to(grad_output.dtype)


def _backward_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """X_backward(grad, input, *scalars), from the gradient of this library's X."""

    def call(grad_output: Tensor, input: Tensor, *rest: Any, **named: Any) -> Tensor:
        found = gradients(lambda x: function(x, *rest, **named), (input,), grad_output)[0]
        assert found is not None
        return found

    return call


def _elu_backward(
    grad_output: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, self_or_result: Tensor
) -> Tensor:
    if is_result:
        raise NotImplementedError("the gradient of an in-place elu is not supported below autograd")
    return _backward_of(_elu)(grad_output, self_or_result, alpha, scale, input_scale)


def _leaky_relu_backward(grad_output: Tensor, input: Tensor, slope: float, self_is_result: bool) -> Tensor:
    return torch.where(input > 0, grad_output, _wide(grad_output) * slope).to(grad_output.dtype)


def _log_sigmoid_backward(grad_output: Tensor, input: Tensor, buffer: Tensor) -> Tensor:
    return _backward_of(functional.logsigmoid)(grad_output, input)


def _prelu_backward(grad_output: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    positive = input > 0
    return (
        torch.where(positive, grad_output, grad_output * weight),
        torch.where(positive, torch.zeros_like(grad_output), grad_output * input),
    )


def _fp64_functions() -> dict[str, Callable[..., Tensor]]:
    names = "exp exp2 expm1 log log2 log10 log1p sin cos tanh sigmoid erf rsqrt"
    return {name: getattr(library, name) for name in names.split()}


def _reciprocal(input: Tensor) -> Tensor:
    if input.dtype == torch.float64:
        return library.div(torch.ones_like(input), input)
    return library.reciprocal(input)


ATEN: dict[str, Callable[..., Any]] = {
    **_fp64_functions(),
    **{name: _compare(name) for name in COMPARISONS},
    "relu": functional.relu,
    "add": _add,
    "sub": _subtract,
    "subtract": _subtract,
    "rsub": _rsub,
    "sqrt": _sqrt,
    "reciprocal": _reciprocal,
    "div": _div,
    "divide": _div,
    "true_divide": _div,
    "floor_divide": _floor_divide,
    "pow": _pow,
    "lerp": library.lerp,
    "addcmul": library.addcmul,
    "addcdiv": library.addcdiv,
    "maximum": library.maximum,
    "minimum": library.minimum,
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": lambda input, min: clamp(input, min),
    "clamp_max": lambda input, max: clamp(input, None, max),
    "gelu": _gelu,
    "gelu_backward": _backward_of(_gelu),
    "silu": functional.silu,
    "silu_backward": _backward_of(functional.silu),
    "mish": functional.mish,
    "mish_backward": _backward_of(functional.mish),
    "elu": _elu,
    "elu_backward": _elu_backward,
    "softplus": functional.softplus,
    "softplus_backward": _backward_of(functional.softplus),
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "glu": functional.glu,
    "glu_backward": _backward_of(functional.glu),
    "hardtanh": functional.hardtanh,
    "hardswish": functional.hardswish,
    "hardswish_backward": _backward_of(functional.hardswish),
    "hardsigmoid": functional.hardsigmoid,
    "hardsigmoid_backward": _backward_of(functional.hardsigmoid),
    "leaky_relu": functional.leaky_relu,
    "leaky_relu_backward": _leaky_relu_backward,
    "softshrink": functional.softshrink,
    "_prelu_kernel": _prelu,
    "_prelu_kernel_backward": _prelu_backward,
    "sigmoid_backward": _sigmoid_backward,
    "tanh_backward": _tanh_backward,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "_softmax_backward_data": _softmax_backward(False),
    "_log_softmax_backward_data": _softmax_backward(True),
}
