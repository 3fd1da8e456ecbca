"""Batch normalisation (SPEC.md, "batch_norm").

Training: mean, d, r as in layer_norm over the samples and positions of each channel; the running statistics become
(1 - momentum) * running + momentum * batch, the variance with n - 1. Evaluation: d = x - running_mean,
r = div_rn(1, sqrt_rn(running_var + eps)). y = ((d * r) * w) + b.
Gradients: dw = SUM(g * xhat), db = SUM(g); dx = (w * r) * ((g - db / n) - xhat * (dw / n)), (w * r) * g in evaluation.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import affine, batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.sum import _repeat_rows, sum_rows

_Three = tuple[Tensor, Tensor, Tensor]
_Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _run(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    running = (running_mean, running_var)
    if x.numel() == 0:
        y, mean, inverse, *_ = _fake(x, weight, bias, *running, training, momentum, eps)
        new_mean, new_var = (mean.new_empty(0) if v is None or not training else v.clone() for v in running)
        return y, mean.zero_(), inverse.zero_(), new_mean, new_var
    kernels = backend("batch_norm", x.device.type)
    if training:
        return kernels.training(x, weight, bias, *running, momentum, eps)
    y, mean, inverse = kernels.evaluation(x, weight, bias, *running, eps)
    return y, mean, inverse, mean.new_empty(0), mean.new_empty(0)


def _fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> _Five:  # fmt: skip
    mean, inverse = (x.new_empty((x.shape[1],), dtype=affine.wide(x.dtype)) for _ in range(2))
    new_mean, new_var = (
        mean.new_empty(0) if v is None or not training else v.new_empty(v.shape) for v in (running_mean, running_var)
    )
    return x.new_empty(x.shape), mean, inverse, new_mean, new_var


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Five) -> None:
    x, weight, bias, _, _, ctx.training, _, _ = inputs
    ctx.eps = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for these
    ctx.parameter_dtypes = tuple(None if v is None else v.dtype for v in (weight, bias))
    ctx.save_for_backward(x, weight, *output[1:3])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 8
    x, weight, mean, inverse = ctx.saved_tensors
    dx, *parameters = _gradient(grad, x, mean, inverse, weight, ctx.training, ctx.eps)
    dw, db = (None if d is None else v.to(d) for v, d in zip(parameters, ctx.parameter_dtypes, strict=True))
    return dx, dw, db, None, None, None, None, None


def _run_gradient(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, training: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        dx, dw, db = _fake_gradient(grad, x, mean, inverse, weight, training, eps)
        return dx, dw.zero_(), db.zero_()
    return backend("batch_norm", x.device.type).backward(grad, x, mean, inverse, weight, training)


def _fake_gradient(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, training: bool, eps: float
) -> _Three:
    return x.new_empty(x.shape), mean.new_empty(mean.shape), mean.new_empty(mean.shape)


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: _Three) -> None:
    grad, x, mean, inverse, weight, ctx.training, ctx.eps = inputs
    ctx.save_for_backward(grad, x, mean, inverse, weight)


def _backward_gradient(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
    grad, x, mean, inverse, weight = ctx.saved_tensors

    def composed(grad: Tensor, x: Tensor, weight: Tensor | None = None) -> _Three:
        return _composed(grad, x, mean, inverse, weight, ctx.training, ctx.eps)

    present = (grad, x) if weight is None else (grad, x, weight)
    by_grad, by_x, *by_weight = torch.func.vjp(composed, *present)[1](upstream)
    return by_grad, by_x, None, None, by_weight[0] if by_weight else None, None, None


def _composed(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, training: bool, eps: float
) -> _Three:
    """The gradients as `_gradient` has them, of differentiable operations on rows of channels."""
    dtype, channels = affine.wide(x.dtype), x.shape[1]
    v, g = (t.to(dtype).movedim(1, 0).reshape(channels, -1) for t in (x, grad))
    terms = v.shape[1]
    count = v.new_full((channels,), terms)

    def along(t: Tensor) -> Tensor:
        return _repeat_rows(t, terms).t()

    if training:
        d = v - along(sum_rows(v.t()) / count)
        deviation = torch.sqrt(sum_rows((d * d).t()) / count + eps)
        r = torch.ones_like(deviation) / deviation
    else:
        d, r = v - along(mean), inverse
    xhat = d * along(r)
    products, plain = sum_rows((g * xhat).t()), sum_rows(g.t())
    inner = (g - along(plain / count)) - xhat * along(products / count) if training else g
    dx = along(r if weight is None else weight.to(dtype) * r) * inner
    moved = dx.reshape(channels, x.shape[0], *x.shape[2:]).movedim(0, 1)
    return moved.to(x.dtype), products, plain


def _no_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    raise NotImplementedError("batch_norm: vmap is not supported; its statistics are those of the whole batch")


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return batches.one_by_one(_gradient, info, in_dims, args)


_batch_norm = operation("batch_norm", _run, _fake, _setup_context, _backward, _no_vmap)
_gradient = operation(
    "batch_norm_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Every channel less its mean and over its deviation, times its weight, plus its bias.

    input: (N, C) or (N, C, ...), fp32, bf16, fp16 or fp64, any strides. weight, bias (C,): of one dtype, input's, or
    fp32 with half inputs; running_mean, running_var (C,) likewise. training: statistics of this batch, and the running
    ones, if given, are updated in place; otherwise those are used. momentum: the share of the batch in them, in [0, 1].
    Result: input's shape and dtype, channels_last where input is, otherwise contiguous.

    Bits: SPEC.md, "batch_norm": sums over samples and positions in logical order, whatever the memory format.
    Differentiable any number of times, as `layer_norm`, and as accurate. An empty input changes no running statistic.
    Raises ValueError for one value per channel in training, eps <= 0 in training (< 0 otherwise) and a momentum that is
    not in [0, 1]; RuntimeError for shapes, dtypes or devices that do not fit or missing running statistics;
    NotImplementedError under vmap.
    """
    check(input, running_mean, running_var, weight, bias, momentum, eps)
    if training and eps <= 0:
        raise ValueError(f"eps: must be positive in training, got {eps}")
    if training:
        several_values(input.shape[0] * input.shape[2:].numel(), input)
    elif running_mean is None:
        raise RuntimeError("running_mean: must be given unless training")
    form = memory_format(input)
    x = input if form is None else input.movedim(1, -1)
    x = x.flatten(0, -2) if form is not None else x.flatten(2) if x.ndim > 3 else x
    y = update(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if form is not None:
        return y.view(input.shape[0], *input.shape[2:], input.shape[1]).movedim(-1, 1)
    return y.view(input.shape)


def update(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """batch_norm of x (N, C) or (N, C, S) -> contiguous; writes the new running statistics in training."""
    y, _, _, *new = _batch_norm(x, weight, bias, running_mean, running_var, training, float(momentum), float(eps))
    if training:
        with torch.no_grad():
            for running, value in zip((running_mean, running_var), new, strict=True):
                if running is not None:
                    running.copy_(value)
    return y


def several_values(count: int, input: Tensor) -> None:
    """Raises torch's ValueError where a statistic would be of one value; of none, there is nothing to normalise."""
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")


def memory_format(x: Tensor) -> torch.memory_format | None:
    """channels_last or channels_last_3d if x's memory is that and not also contiguous; None otherwise."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if form is None or torch._C._functorch.is_batchedtensor(x):  # torch can't ask a batch of vmap
        return None
    return form if x.is_contiguous(memory_format=form) and not x.is_contiguous() else None


def check(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> None:
    """What batch_norm and instance_norm ask of their arguments."""
    checks.operand("input", input)
    if input.ndim < 2:
        raise RuntimeError(f"input: expected (N, C) or (N, C, ...), got shape {tuple(input.shape)}")
    affine.check_eps(eps)
    if isinstance(momentum, bool) or not isinstance(momentum, (int, float)):
        raise TypeError(f"momentum: expected a number, got {type(momentum).__name__}")
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum: expected a number in [0, 1], got {momentum}")
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    shape, why = (input.shape[1],), "one for each channel"
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for name, v in given.items():
        affine.check_parameter(name, v, shape, why, input)
    affine.same_dtype(weight, bias)
