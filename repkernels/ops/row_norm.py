"""What layer_norm and rms_norm share: operations on rows, their gradients, and the gradients of those.

layer_norm is `centred`, rms_norm is the same without a mean. With a residual, x + residual is rounded to x's dtype,
returned and normalised.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import affine, batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.sum import _repeat_rows, sum_rows

_Three = tuple[Tensor, Tensor, Tensor]
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def row_norm(name: str, centred: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(norm, add_norm) of rows, each an operation, with the kernels of `name`.

    norm(x (R, C), weight, bias, eps, dtype) -> (y (R, C) in dtype, mean (R,), r (R,)).
    add_norm(x, residual, weight, bias, eps, dtype) -> (y, x + residual in x's dtype, mean, r).
    """

    def run(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, _, mean, inverse = backend(name, x.device.type).forward(x, None, weight, bias, eps, dtype)
        return y, mean, inverse

    def fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> _Three:
        rows, wide = x.shape[0], affine.wide(x.dtype)
        mean, inverse = (x.new_empty((n,), dtype=wide) for n in (rows if centred else 0, rows))
        return x.new_empty(x.shape, dtype=dtype), mean, inverse

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Three) -> None:
        x, weight, bias, ctx.eps, _ = inputs
        _save(ctx, x, weight, bias, *output[1:])

    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None, None
        parameters = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        dx, dw, db = differentiate(ctx, grad, None, parameters)
        return dx, dw, db, None, None

    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Any, bias: Any, eps: float, dtype: torch.dtype
    ) -> tuple[_Three, tuple[int, int, int]]:
        batches.refuse(name, in_dims[1:3])
        x = x.movedim(in_dims[0], 0)
        results = norm(x.reshape(-1, x.shape[-1]), weight, bias, eps, dtype)
        return _unjoined(results, len(x)), (0, 0, 0)

    def add_run(
        x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return backend(name, x.device.type).forward(x, residual, weight, bias, eps, dtype)

    def add_fake(
        x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
    ) -> _Four:
        y, mean, inverse = fake(x, weight, bias, eps, dtype)
        return y, x.new_empty(x.shape), mean, inverse

    def add_setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Four) -> None:
        _, _, weight, bias, ctx.eps, _ = inputs
        _save(ctx, output[1], weight, bias, *output[2:])

    def add_backward(ctx: Any, grad: Tensor | None, extra: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return extra, extra, None, None, None, None
        parameters = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
        dx, dw, db = differentiate(ctx, grad, extra, parameters)
        return dx, dx, dw, db, None, None

    def add_vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, residual: Tensor, weight: Any, bias: Any, eps: float,
        dtype: torch.dtype,
    ) -> tuple[_Four, tuple[int, int, int, int]]:  # fmt: skip
        batches.refuse(f"add_{name}", in_dims[2:4])
        x, residual = batches.first(info, in_dims[:2], x, residual)
        rows = (v.reshape(-1, v.shape[-1]) for v in (x, residual))
        results = add_norm(*rows, weight, bias, eps, dtype)
        return _unjoined(results, len(x)), (0, 0, 0, 0)

    def differentiate(ctx: Any, grad: Tensor, extra: Tensor | None, parameters: bool) -> tuple[Any, Any, Any]:
        """Gradients of what was normalised, of weight and of bias; None for those that are not there."""
        x, weight, mean, inverse = ctx.saved_tensors
        dx, dw, db = gradient(grad, x, mean, inverse, weight, extra, ctx.eps, parameters)
        weight_dtype, bias_dtype = ctx.parameter_dtypes
        return (
            dx,
            dw.to(weight_dtype) if parameters and weight_dtype is not None else None,
            db.to(bias_dtype) if parameters and bias_dtype is not None else None,
        )

    def run_gradient(
        grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, extra: Tensor | None, eps: float,
        parameters: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        kernels = backend(name, x.device.type)
        return kernels.backward(grad, x, mean, inverse, weight, extra, parameters)

    def fake_gradient(
        grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, extra: Tensor | None, eps: float,
        parameters: bool,
    ) -> _Three:  # fmt: skip
        columns = x.shape[1] if parameters else 0
        dw, db = (inverse.new_empty((n,)) for n in (columns, columns if centred else 0))
        return x.new_empty(x.shape), dw, db

    def setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: _Three) -> None:
        grad, x, _, _, weight, extra, ctx.eps, ctx.parameters = inputs
        ctx.save_for_backward(grad, x, weight, extra)

    def backward_gradient(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors

        def composed(grad: Tensor, x: Tensor, *optional: Tensor) -> _Three:
            given = iter(optional)
            weight, extra = (None if t is None else next(given) for t in tensors[2:])
            return _composed(grad, x, weight, extra, ctx.eps, ctx.parameters, centred)

        found = iter(torch.func.vjp(composed, *(t for t in tensors if t is not None))[1](upstream))
        grad, x, weight, extra = (None if t is None else next(found) for t in tensors)
        return grad, x, None, None, weight, extra, None, None

    def vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        # Weight gradients are sums over a sample's own rows, so samples can't be joined.
        return batches.one_by_one(gradient, info, in_dims, args)

    norm = operation(name, run, fake, setup_context, backward, vmap)
    add_norm = operation(f"add_{name}", add_run, add_fake, add_setup_context, add_backward, add_vmap)
    gradient = operation(
        f"{name}_gradient", run_gradient, fake_gradient, setup_gradient, backward_gradient, vmap_gradient
    )
    return norm, add_norm


def _unjoined(results: tuple[Tensor, ...], batch: int) -> Any:
    """Results of the rows of `batch` samples, sample by sample."""
    return tuple(v.view(batch, len(v) // batch, *v.shape[1:]) for v in results)


def _save(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor) -> None:
    ctx.mark_non_differentiable(mean, inverse)
    # A gradient that is not there adds nothing; one of zeros would make +0 of -0.
    ctx.set_materialize_grads(False)
    ctx.parameter_dtypes = tuple(None if v is None else v.dtype for v in (weight, bias))
    ctx.save_for_backward(x, weight, mean, inverse)


def _composed(
    grad: Tensor, x: Tensor, weight: Tensor | None, extra: Tensor | None, eps: float, parameters: bool, centred: bool
) -> _Three:
    """The gradients as `gradient` has them, of differentiable operations."""
    dtype, (rows, columns) = affine.wide(x.dtype), x.shape
    v, g = x.to(dtype), grad.to(dtype)
    count = v.new_full((rows,), columns)

    def mean_of(terms: Tensor) -> Tensor:
        return _repeat_rows(sum_rows(terms.t()) / count, columns).t()

    d = v - mean_of(v) if centred else v
    deviation = torch.sqrt(mean_of(d * d) + eps)
    r = torch.ones_like(deviation) / deviation
    xhat = d * r
    gw = g if weight is None else g * _repeat_rows(weight.to(dtype), rows)
    inner = gw - mean_of(gw) if centred else gw
    dx = (r * (inner - xhat * mean_of(gw * xhat))).to(x.dtype)
    if extra is not None:
        dx = dx + extra
    if not parameters:
        return dx, v.new_empty(0), v.new_empty(0)
    return dx, sum_rows(g * xhat), sum_rows(g) if centred else v.new_empty(0)


def check_rows(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> tuple[int, int]:
    """(rows, columns) of input under a norm over its last axes; raises as torch where something does not fit."""
    checks.operand("input", input)
    if isinstance(normalized_shape, int) or not all(isinstance(n, int) for n in normalized_shape):
        raise TypeError(f"normalized_shape: expected a list of ints, got {normalized_shape!r}")
    shape = tuple(normalized_shape)
    if not shape:
        raise RuntimeError("normalized_shape: expected at least one size, got ()")
    if input.ndim < len(shape) or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"normalized_shape: expected the last sizes of input, of shape {tuple(input.shape)}, got {shape}"
        )
    for name, v in (("weight", weight), ("bias", bias)):
        affine.check_parameter(name, v, shape, "normalized_shape", input)
    affine.same_dtype(weight, bias)
    return math.prod(input.shape[: -len(shape)]), math.prod(shape)


def check_residual(input: Tensor, residual: Tensor) -> None:
    """Raises unless residual has input's shape, dtype and device."""
    checks.operand("residual", residual)
    checks.same("residual", residual, "input", input)
    if residual.shape != input.shape:
        raise RuntimeError(
            f"residual: expected input's shape {tuple(input.shape)}, got {tuple(residual.shape)}; expand one of them"
        )
