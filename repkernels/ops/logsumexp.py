"""log(sum(exp(x))) (SPEC.md, "Reductions"): m = MAX, RN(m + ln_f32(SUM(exp_f32(RN(x - m)))))."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.reduce import Dim
from repkernels.ops.reduction_gradient import reduction_gradient

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _run(x: Tensor, dims: list[int]) -> Tensor:
    shape = reduce.kept_shape(x.shape, dims)
    if not x.numel():
        return x.new_full(shape, -torch.inf)
    terms = reduce.columns(x, dims)
    largest = backend("extrema", x.device.type).extreme(terms, True)
    reduced = backend("sum", x.device.type).reduce
    return reduced(terms, "exponential", largest, "logarithm", 1, x.dtype).view(shape)


def _fake(x: Tensor, dims: list[int]) -> Tensor:
    return x.new_empty(reduce.kept_shape(x.shape, dims))


def _setup_context(ctx: Any, inputs: tuple[Tensor, list[int]], output: Tensor) -> None:
    x, ctx.dims = inputs
    ctx.save_for_backward(x, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    x, result = ctx.saved_tensors
    return reduction_gradient(x, grad, result, None, ctx.dims, "exponential", 0.0), None


_logsumexp: Callable[..., Any] = operation(
    "logsumexp", _run, _fake, _setup_context, _backward, reduce.moved(lambda: _logsumexp)
)


def logsumexp(input: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over `dim` (an int, ints, or all), torch.logsumexp's signature.

    input: fp32, bf16, fp16, any strides; result in its dtype, rounded once; under autocast fp32. Integers are converted
    to fp32. An infinite maximum is the result; nothing gives -inf. Bits: SPEC.md, "Reductions". Differentiable twice.
    Accuracy: |error| <= 1.01 (d + 4) u + u |result|, d and u of `repkernels.sum`; and one rounding of a half type.
    Raises IndexError and RuntimeError for axes as torch, NotImplementedError for fp64 and other dtypes.
    """
    reduce.operand("input", input, integers=True)
    if not input.is_floating_point():
        input = input.float()
    checks.operand("input", input, _DTYPES)
    input = input.to(reduce.single_precision(input, None) or input.dtype)
    dims = reduce.inside(reduce.axes(input.ndim, dim), input.ndim)
    y = _logsumexp(input, dims)
    return reduce.with_axes(y, dims) if keepdim else y
