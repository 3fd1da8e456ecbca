"""Instance normalisation (SPEC.md, "instance_norm"): batch_norm of one sample that has all samples' channels."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import affine
from repkernels.ops.batch_norm import batch_norm, check, update
from repkernels.ops.operation import operation
from repkernels.ops.sum import _repeat_rows, sum_rows
from repkernels.subnormals import subnormals_kept


def _run_mean(x: Tensor) -> Tensor:
    # By a tensor, since torch multiplies by the reciprocal of a scalar.
    total = sum_rows(x)
    with subnormals_kept():
        return total / torch.full_like(total, x.shape[0])


def _fake_mean(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[1],))


def _save_nothing(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)


def _no_gradient(ctx: Any, grad: Tensor) -> None:
    return None


def _no_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    raise NotImplementedError("instance_norm: vmap over running statistics is not supported")


_mean_of_samples = operation("instance_norm_mean", _run_mean, _fake_mean, _save_nothing, _no_gradient, _no_vmap)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Every channel of every sample less its mean and over its deviation, times the channel's weight, plus its bias.

    input: (N, C, ...), fp32, bf16, fp16 or fp64, any strides. weight, bias, running_mean, running_var: as `batch_norm`.
    use_input_stats: statistics of each sample's channel, and the running ones, if given, move in place towards their
    mean over the samples; otherwise this is `batch_norm` in evaluation. Result: input's shape and dtype, contiguous.

    Bits: SPEC.md, "instance_norm". Differentiable any number of times. Raises as `batch_norm`; ValueError for one value
    per channel, RuntimeError for missing running statistics.
    """
    check(input, running_mean, running_var, weight, bias, momentum, eps)
    if not use_input_stats:
        if running_mean is None:
            raise RuntimeError("running_mean and running_var: must be given unless use_input_stats")
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps).contiguous()
    if input.shape[2:].numel() == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.shape}")
    if eps <= 0:
        raise ValueError(f"eps: must be positive with use_input_stats, got {eps}")
    samples, channels = input.shape[:2]
    wide = affine.wide(input.dtype)

    def repeated(v: Tensor | None) -> Tensor | None:
        return None if v is None else _repeat_rows(v.to(wide), samples).view(-1)

    x = input.reshape(1, samples * channels, input.shape[2:].numel())
    with torch.no_grad():
        mean, var = repeated(running_mean), repeated(running_var)
    y = update(x, mean, var, repeated(weight), repeated(bias), True, momentum, eps)
    if input.numel():
        with torch.no_grad():
            for old, new in ((running_mean, mean), (running_var, var)):
                if old is not None and new is not None:
                    old.copy_(_mean_of_samples(new.view(samples, channels)))
    return y.view(input.shape)
