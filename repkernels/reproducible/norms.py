"""Normalisations, below autograd, with torch's saved statistics: the mean and one over the deviation."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import affine
from repkernels.ops.backend import backend
from repkernels.ops.batch_norm import _batch_norm as batch_norm
from repkernels.ops.group_norm import _group_norm as group_norm
from repkernels.ops.layer_norm import _layer_norm as layer_norm
from repkernels.ops.rms_norm import _rms_norm as rms_norm

WHY = "torch sums the statistics in another order on each device"
_Some = tuple[Tensor | None, ...]
Sizes = Sequence[int]
Mask = Sequence[bool]
Maybe = Tensor | None


def _rows(x: Tensor, normalized_shape: Sizes) -> Tensor:
    return x.reshape(-1, math.prod(normalized_shape))


def _flat(v: Maybe) -> Maybe:
    return None if v is None else v.reshape(-1)


def _chosen(mask: Mask, found: Sequence[Maybe], like: Sequence[Maybe]) -> _Some:
    """The gradients that are wanted, in the shape and dtype of their operands."""
    return tuple(
        v.to(x.dtype).view(x.shape) if wanted and v is not None and x is not None else None
        for wanted, v, x in zip(mask, found, like, strict=True)
    )


def _layer(
    input: Tensor, normalized_shape: Sizes, weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _rows(input, normalized_shape)
    y, mean, inverse = layer_norm(rows, _flat(weight), _flat(bias), eps, input.dtype)
    shape = [*input.shape[: input.ndim - len(normalized_shape)], *[1] * len(normalized_shape)]
    return y.view(input.shape), mean.view(shape), inverse.view(shape)


def _layer_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sizes,
    mean: Tensor,
    rstd: Tensor,
    weight: Maybe,
    bias: Maybe,
    output_mask: Mask,
) -> _Some:
    x, g = (_rows(v, normalized_shape) for v in (input, grad_out))
    kernels = backend("layer_norm", input.device.type)
    found = kernels.backward(g, x, mean.reshape(-1), rstd.reshape(-1), _flat(weight), None, any(output_mask[1:]))
    return _chosen(output_mask, found, (input, weight, bias if bias is not None else weight))


def _rms(input: Tensor, normalized_shape: Sizes, weight: Maybe, eps: float | None) -> tuple[Tensor, Tensor]:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    y, _, inverse = rms_norm(_rows(input, normalized_shape), _flat(weight), None, eps, input.dtype)
    return y.view(input.shape), inverse.view([*input.shape[: -len(normalized_shape)], *[1] * len(normalized_shape)])


def _rms_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sizes, rstd: Tensor, weight: Maybe, output_mask: Mask
) -> _Some:
    x, g = (_rows(v, normalized_shape) for v in (input, grad_out))
    kernels, none = backend("rms_norm", input.device.type), rstd.new_empty(0)
    dx, dw, _ = kernels.backward(g, x, none, rstd.reshape(-1), _flat(weight), None, output_mask[1])
    return _chosen(output_mask, (dx, dw), (input, weight))


def _group(
    input: Tensor, weight: Maybe, bias: Maybe, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, inverse = group_norm(input.reshape(N, C, HxW), group, weight, bias, eps, input.dtype)
    return y.view(input.shape), mean.view(N, group), inverse.view(N, group)


def _group_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Mask,
) -> _Some:
    x, g = (v.reshape(N, C, HxW).contiguous() for v in (input, grad_out))
    kernels = backend("group_norm", input.device.type)
    found = kernels.backward(g, x, mean.reshape(-1), rstd.reshape(-1), group, weight)
    parameter = weight if weight is not None else input.new_empty(C)
    return _chosen(output_mask, found, (input, parameter, parameter))


def _channels(x: Tensor) -> Tensor:
    return x.flatten(2) if x.ndim > 3 else x


def _batch(
    input: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    found = batch_norm(_channels(input), weight, bias, running_mean, running_var, training, momentum, eps)
    y, mean, inverse, *new = found
    if training:
        for running, value in zip((running_mean, running_var), new, strict=True):
            if running is not None:
                running.copy_(value)
    return y.view(input.shape), mean, inverse


def _batch_without_statistics(
    input: Tensor, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _batch(input, weight, bias, None, None, training, momentum, eps)


def _batch_with_reserve(input: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """cudnn's and the unified form: a fourth result that only they read."""
    if len(args) == 6:
        weight, bias, running_mean, running_var, momentum, eps = args
        args = (weight, bias, running_mean, running_var, True, momentum, eps)
    return *_batch(input, *args), input.new_empty(0, dtype=torch.uint8)


def _batch_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Mask,
    *_: Any,
) -> _Some:
    if not train:
        wide = affine.wide(input.dtype)
        assert running_mean is not None and running_var is not None
        save_mean = running_mean.to(wide)
        x = running_mean.to(wide).view(1, -1)
        save_invstd = batch_norm(x, None, None, running_mean.to(wide), running_var.to(wide), False, 0.0, eps)[2]
    kernels = backend("batch_norm", input.device.type)
    found = kernels.backward(_channels(grad_out), _channels(input), save_mean, save_invstd, weight, train)
    parameter = weight if weight is not None else input.new_empty(input.shape[1])
    dx, dw, db = found
    return _chosen(output_mask, (dx.view(input.shape), dw, db), (input, parameter, parameter))


def _cudnn_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    epsilon: float,
    reserve: Tensor,
) -> _Some:
    saved = (running_mean, running_var, save_mean, save_var)
    return _batch_backward(grad_output, input, weight, *saved, True, epsilon, (True, True, True))


ATEN: dict[str, Callable[..., Any]] = {
    "native_layer_norm": _layer,
    "native_layer_norm_backward": _layer_backward,
    "_fused_rms_norm": _rms,
    "_fused_rms_norm_backward": _rms_backward,
    "native_group_norm": _group,
    "native_group_norm_backward": _group_backward,
    "native_batch_norm": _batch,
    "_native_batch_norm_legit": _batch,
    "_native_batch_norm_legit.no_stats": _batch_without_statistics,
    "cudnn_batch_norm": _batch_with_reserve,
    "miopen_batch_norm": _batch,
    "_batch_norm_with_update": _batch_with_reserve,
    "native_batch_norm_backward": _batch_backward,
    "batch_norm_backward": _batch_backward,
    "cudnn_batch_norm_backward": _cudnn_backward,
    "miopen_batch_norm_backward": _cudnn_backward,
}
