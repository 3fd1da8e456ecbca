"""torch.nn's convolutions over this library's operations: the same names, signatures, repr and state_dict keys."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from repkernels.contract import ContractLike
from repkernels.nn import functional, init


class _Initialised(_ConvNd):
    """Weight and bias drawn by Philox, and the contract that the layer follows instead of the one in force."""

    contract: ContractLike | None = None

    def reset_parameters(self) -> None:
        """Draws weight and bias anew, from the next two streams of `repkernels.random`."""
        fan_in, _ = torch.nn.init._calculate_fan_in_and_fan_out(self.weight)
        bound = init.linear_bound(fan_in)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)


class _Conv(_Initialised):
    """A convolution; padding that is not of zeros is an operation of its own before it."""

    def _convolve(self, call: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return call(input, weight, bias, self.stride, padding, self.dilation, self.groups, contract=self.contract)


class _ConvTranspose(_Initialised, _ConvTransposeNd):
    """A transposed convolution."""

    def _transpose(self, call: Any, input: Tensor, output_size: Any) -> Tensor:
        axes = len(self.kernel_size)
        if self.padding_mode != "zeros":
            raise ValueError(f"Only `zeros` padding mode is supported for ConvTranspose{axes}d")
        find: Any = self._output_padding
        more = find(input, output_size, self.stride, self.padding, self.kernel_size, axes, self.dilation)
        return call(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            more,
            self.groups,
            self.dilation,
            contract=self.contract,
        )


class Conv1d(_Conv, torch.nn.Conv1d):
    """torch.nn.Conv1d, as `nn.functional.conv1d`, initialised by Philox. See `Conv2d`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._convolve(functional.conv1d, input, weight, bias)


class Conv2d(_Conv, torch.nn.Conv2d):
    """torch.nn.Conv2d, as `nn.functional.conv2d`, initialised by Philox.

    Arguments and attributes are torch's. Weight and bias are drawn from U(-bound, bound), bound = 1 / sqrt(in_channels
    / groups * kernel elements), the weight's stream first, then the bias's; in logical order, whatever the memory
    format, so they are the same everywhere. padding_mode: "zeros", or another mode of `nn.functional.pad`.
    contract: an attribute, None at first: what this layer follows instead of the contract in force.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._convolve(functional.conv2d, input, weight, bias)


class Conv3d(_Conv, torch.nn.Conv3d):
    """torch.nn.Conv3d, as `nn.functional.conv3d`, initialised by Philox. See `Conv2d`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._convolve(functional.conv3d, input, weight, bias)


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """torch.nn.ConvTranspose1d, as `nn.functional.conv_transpose1d`. See `ConvTranspose2d`."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return self._transpose(functional.conv_transpose1d, input, output_size)


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d, as `nn.functional.conv_transpose2d`, initialised by Philox.

    As `Conv2d`; bound = 1 / sqrt(out_channels / groups * kernel elements), as torch's.
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return self._transpose(functional.conv_transpose2d, input, output_size)


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d, as `nn.functional.conv_transpose3d`. See `ConvTranspose2d`."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return self._transpose(functional.conv_transpose3d, input, output_size)
