"""Group normalisation (SPEC.md, "group_norm").

mean, d and r as in layer_norm over the channels and positions of each group; y = ((d * r) * w) + b.
Gradients: P = SUM(g * xhat) and Q = SUM(g) over the positions of each channel; dw = SUM P, db = SUM Q over samples;
a = SUM(w * P) / n and b = SUM(w * Q) / n over the channels of a group; dx = r * ((g * w - b) - xhat * a).
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import affine, batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.batch_norm import memory_format, several_values
from repkernels.ops.operation import operation
from repkernels.ops.sum import _repeat_rows, sum_rows

_Three = tuple[Tensor, Tensor, Tensor]


def _run(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        y, mean, inverse = _fake(x, groups, weight, bias, eps, dtype)
        return y, mean.zero_(), inverse.zero_()
    return backend("group_norm", x.device.type).forward(x.contiguous(), groups, weight, bias, eps, dtype)


def _fake(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> _Three:
    mean, inverse = (x.new_empty((x.shape[0] * groups,), dtype=affine.wide(x.dtype)) for _ in range(2))
    return x.new_empty(x.shape, dtype=dtype), mean, inverse


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Three) -> None:
    x, ctx.groups, weight, bias, ctx.eps, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.parameter_dtypes = tuple(None if v is None else v.dtype for v in (weight, bias))
    ctx.save_for_backward(x, weight, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, mean, inverse = ctx.saved_tensors
    dx, *parameters = _gradient(grad, x, mean, inverse, weight, ctx.groups, ctx.eps)
    dw, db = (None if d is None else v.to(d) for v, d in zip(parameters, ctx.parameter_dtypes, strict=True))
    return dx, None, dw, db, None, None


def _vmap(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, groups: int, weight: Any, bias: Any, eps: float, dtype: torch.dtype
) -> tuple[_Three, tuple[int, int, int]]:
    batches.refuse("group_norm", in_dims[2:4])
    x = x.movedim(in_dims[0], 0)
    y, *saved = _group_norm(x.flatten(0, 1), groups, weight, bias, eps, dtype)
    mean, inverse = (v.view(x.shape[0], -1) for v in saved)
    return (y.view(x.shape), mean, inverse), (0, 0, 0)


def _run_gradient(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        dx, dw, db = _fake_gradient(grad, x, mean, inverse, weight, groups, eps)
        return dx, dw.zero_(), db.zero_()
    kernels = backend("group_norm", x.device.type)
    return kernels.backward(grad.contiguous(), x.contiguous(), mean, inverse, groups, weight)


def _fake_gradient(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, groups: int, eps: float
) -> _Three:
    dw, db = (mean.new_empty((x.shape[1],)) for _ in range(2))
    return x.new_empty(x.shape), dw, db


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: _Three) -> None:
    grad, x, _, _, weight, ctx.groups, ctx.eps = inputs
    ctx.save_for_backward(grad, x, weight)


def _backward_gradient(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
    grad, x, weight = ctx.saved_tensors

    def composed(grad: Tensor, x: Tensor, weight: Tensor | None = None) -> _Three:
        return _composed(grad, x, weight, ctx.groups, ctx.eps)

    present = (grad, x) if weight is None else (grad, x, weight)
    by_grad, by_x, *by_weight = torch.func.vjp(composed, *present)[1](upstream)
    return by_grad, by_x, None, None, by_weight[0] if by_weight else None, None, None


def _composed(grad: Tensor, x: Tensor, weight: Tensor | None, groups: int, eps: float) -> _Three:
    """The gradients as `_gradient` has them, of differentiable operations."""
    dtype, (samples, channels, size) = affine.wide(x.dtype), x.shape
    v, g = x.to(dtype).reshape(samples * groups, -1), grad.to(dtype).reshape(-1, size)
    count = v.new_full((samples * groups,), v.shape[1])

    def along(t: Tensor, length: int) -> Tensor:
        return _repeat_rows(t, length).t()

    def per_channel(t: Tensor) -> Tensor:
        """A number for each group, (N * groups,), at each of its elements: (N * C, S)."""
        return along(t, v.shape[1]).reshape(-1, size)

    d = v - along(sum_rows(v.t()) / count, v.shape[1])
    deviation = torch.sqrt(sum_rows((d * d).t()) / count + eps)
    r = per_channel(torch.ones_like(deviation) / deviation)
    xhat = d.reshape(-1, size) * r
    sums = sum_rows((g * xhat).t()), sum_rows(g.t())
    w = None if weight is None else _repeat_rows(weight.to(dtype), samples).reshape(-1)
    weighted = sums if w is None else tuple(s * w for s in sums)
    a, b = (per_channel(sum_rows(s.reshape(samples * groups, -1).t()) / count) for s in weighted)
    dx = r * (((g if w is None else g * along(w, size)) - b) - xhat * a)
    dw, db = (sum_rows(s.reshape(samples, channels)) for s in sums)
    return dx.reshape(x.shape).to(x.dtype), dw, db


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return batches.one_by_one(_gradient, info, in_dims, args)


_group_norm = operation("group_norm", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "group_norm_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Every group of channels of a sample less its mean and over its deviation, times each channel's weight, plus bias.

    input: (N, C) or (N, C, ...), fp32, bf16, fp16 or fp64, any strides; C a multiple of num_groups. weight, bias (C,):
    of one dtype, input's, or fp32 with half inputs. Result: input's shape and dtype (fp32 of half inputs under
    autocast), channels_last where input is, otherwise contiguous.

    Bits: SPEC.md, "group_norm": sums over a group's channels and positions in logical order, whatever the memory
    format; without weight and bias they are those of layer_norm on (N * num_groups, rest). A sample's depend on nothing
    else. Differentiable any number of times, as `layer_norm`, and as accurate.
    Raises RuntimeError for shapes, dtypes or devices that do not fit, ValueError for one value per group, eps < 0 or
    num_groups < 1.
    """
    checks.operand("input", input)
    affine.check_eps(eps)
    if input.ndim < 2:
        raise RuntimeError(f"input: expected (N, C) or (N, C, ...), got shape {tuple(input.shape)}")
    if not isinstance(num_groups, int) or num_groups < 1:
        raise ValueError(f"num_groups: expected an integer >= 1, got {num_groups}")
    samples, channels = input.shape[:2]
    if channels % num_groups:
        raise RuntimeError(f"num_groups: {num_groups} does not divide the {channels} channels of {tuple(input.shape)}")
    for name, v in (("weight", weight), ("bias", bias)):
        affine.check_parameter(name, v, (channels,), "one for each channel", input)
    affine.same_dtype(weight, bias)
    # torch asks this of all samples together.
    several_values(samples * channels // num_groups * input.shape[2:].numel(), input)
    size = input.shape[2:].numel()
    x = input.reshape(samples, channels, size)
    y = _group_norm(x, num_groups, weight, bias, float(eps), affine.result_dtype(input))[0].view(input.shape)
    form = memory_format(input)
    return y if form is None else y.contiguous(memory_format=form)
