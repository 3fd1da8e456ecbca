"""torch.nn's padding, resizing and rearranging modules over this library's operations (SPEC.md, "Resampling")."""

import torch
from torch import Tensor

from repkernels.ops.fold import fold, unfold
from repkernels.ops.interpolate import interpolate
from repkernels.ops.pad import pad


class _ReflectionPad(torch.nn.modules.padding._ReflectionPadNd):
    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, "reflect")


class _ReplicationPad(torch.nn.modules.padding._ReplicationPadNd):
    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, "replicate")


class _CircularPad(torch.nn.modules.padding._CircularPadNd):
    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        return pad(input, self.padding, "circular")


class _ConstantPad(torch.nn.modules.padding._ConstantPadNd):
    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, "constant", self.value)


class ReflectionPad1d(_ReflectionPad, torch.nn.ReflectionPad1d):
    """torch.nn.ReflectionPad1d, as `nn.functional.pad`."""


class ReflectionPad2d(_ReflectionPad, torch.nn.ReflectionPad2d):
    """torch.nn.ReflectionPad2d, as `nn.functional.pad`."""


class ReflectionPad3d(_ReflectionPad, torch.nn.ReflectionPad3d):
    """torch.nn.ReflectionPad3d, as `nn.functional.pad`."""


class ReplicationPad1d(_ReplicationPad, torch.nn.ReplicationPad1d):
    """torch.nn.ReplicationPad1d, as `nn.functional.pad`."""


class ReplicationPad2d(_ReplicationPad, torch.nn.ReplicationPad2d):
    """torch.nn.ReplicationPad2d, as `nn.functional.pad`."""


class ReplicationPad3d(_ReplicationPad, torch.nn.ReplicationPad3d):
    """torch.nn.ReplicationPad3d, as `nn.functional.pad`."""


class CircularPad1d(_CircularPad, torch.nn.CircularPad1d):
    """torch.nn.CircularPad1d, as `nn.functional.pad`."""


class CircularPad2d(_CircularPad, torch.nn.CircularPad2d):
    """torch.nn.CircularPad2d, as `nn.functional.pad`."""


class CircularPad3d(_CircularPad, torch.nn.CircularPad3d):
    """torch.nn.CircularPad3d, as `nn.functional.pad`."""


class ConstantPad1d(_ConstantPad, torch.nn.ConstantPad1d):
    """torch.nn.ConstantPad1d, as `nn.functional.pad`."""


class ConstantPad2d(_ConstantPad, torch.nn.ConstantPad2d):
    """torch.nn.ConstantPad2d, as `nn.functional.pad`."""


class ConstantPad3d(_ConstantPad, torch.nn.ConstantPad3d):
    """torch.nn.ConstantPad3d, as `nn.functional.pad`."""


class ZeroPad1d(_ConstantPad, torch.nn.ZeroPad1d):
    """torch.nn.ZeroPad1d, as `nn.functional.pad`."""


class ZeroPad2d(_ConstantPad, torch.nn.ZeroPad2d):
    """torch.nn.ZeroPad2d, as `nn.functional.pad`."""


class ZeroPad3d(_ConstantPad, torch.nn.ZeroPad3d):
    """torch.nn.ZeroPad3d, as `nn.functional.pad`."""


class Upsample(torch.nn.Upsample):
    """torch.nn.Upsample, as `nn.functional.interpolate`."""

    def forward(self, input: Tensor) -> Tensor:
        return interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            recompute_scale_factor=self.recompute_scale_factor,
        )


class UpsamplingNearest2d(Upsample, torch.nn.UpsamplingNearest2d):
    """torch.nn.UpsamplingNearest2d, as `nn.functional.interpolate`."""


class UpsamplingBilinear2d(Upsample, torch.nn.UpsamplingBilinear2d):
    """torch.nn.UpsamplingBilinear2d, as `nn.functional.interpolate`."""


class Fold(torch.nn.Fold):
    """torch.nn.Fold, as `nn.functional.fold`."""

    def forward(self, input: Tensor) -> Tensor:
        return fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)


class Unfold(torch.nn.Unfold):
    """torch.nn.Unfold, as `nn.functional.unfold`."""

    def forward(self, input: Tensor) -> Tensor:
        return unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)
