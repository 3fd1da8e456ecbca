"""torch.nn's normalisations over this library's operations: the same names, signatures, repr and state_dict keys."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops.batch_norm import batch_norm
from repkernels.ops.group_norm import group_norm
from repkernels.ops.instance_norm import instance_norm
from repkernels.ops.layer_norm import layer_norm
from repkernels.ops.rms_norm import rms_norm


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, as `nn.functional.layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, as `nn.functional.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, as `nn.functional.group_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class _BatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """torch.nn.BatchNorm's forward, as `nn.functional.batch_norm`.

    momentum None: the running statistics are averages over all batches, 1 / num_batches_tracked in binary64.
    """

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        used = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if used else (None, None)
        training = self.training or (self.running_mean is None and self.running_var is None)
        return batch_norm(input, *running, self.weight, self.bias, training, momentum, self.eps)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, as `nn.functional.batch_norm`."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, as `nn.functional.batch_norm`."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, as `nn.functional.batch_norm`."""


class _InstanceNorm(torch.nn.modules.instancenorm._InstanceNorm):
    """torch.nn.InstanceNorm's, as `nn.functional.instance_norm`."""

    def _apply_instance_norm(self, input: Any) -> Tensor:
        return instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d, as `nn.functional.instance_norm`."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d, as `nn.functional.instance_norm`."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d, as `nn.functional.instance_norm`."""
