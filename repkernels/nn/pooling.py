"""torch.nn's pooling modules over this library's operations: the same names, signatures and repr."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import avg_pool, fractional_max_pool, lp_pool, max_pool, max_unpool


class MaxPool1d(torch.nn.MaxPool1d):
    """torch.nn.MaxPool1d, as `nn.functional.max_pool1d`."""

    def forward(self, input: Tensor) -> Any:
        return max_pool.max_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d, as `nn.functional.max_pool2d`."""

    def forward(self, input: Tensor) -> Any:
        return max_pool.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool3d(torch.nn.MaxPool3d):
    """torch.nn.MaxPool3d, as `nn.functional.max_pool3d`."""

    def forward(self, input: Tensor) -> Any:
        return max_pool.max_pool3d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxUnpool1d(torch.nn.MaxUnpool1d):
    """torch.nn.MaxUnpool1d, as `nn.functional.max_unpool1d`."""

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return max_unpool.max_unpool1d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool2d(torch.nn.MaxUnpool2d):
    """torch.nn.MaxUnpool2d, as `nn.functional.max_unpool2d`."""

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return max_unpool.max_unpool2d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool3d(torch.nn.MaxUnpool3d):
    """torch.nn.MaxUnpool3d, as `nn.functional.max_unpool3d`."""

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return max_unpool.max_unpool3d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class AvgPool1d(torch.nn.AvgPool1d):
    """torch.nn.AvgPool1d, as `nn.functional.avg_pool1d`."""

    def forward(self, input: Tensor) -> Tensor:
        window = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return avg_pool.avg_pool1d(input, *window)


class AvgPool2d(torch.nn.AvgPool2d):
    """torch.nn.AvgPool2d, as `nn.functional.avg_pool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        window = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return avg_pool.avg_pool2d(input, *window, self.divisor_override)


class AvgPool3d(torch.nn.AvgPool3d):
    """torch.nn.AvgPool3d, as `nn.functional.avg_pool3d`."""

    def forward(self, input: Tensor) -> Tensor:
        window = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return avg_pool.avg_pool3d(input, *window, self.divisor_override)


class FractionalMaxPool2d(torch.nn.FractionalMaxPool2d):
    """torch.nn.FractionalMaxPool2d, as `nn.functional.fractional_max_pool2d`."""

    def forward(self, input: Tensor) -> Any:
        return fractional_max_pool.fractional_max_pool2d(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,  # type: ignore[arg-type]
        )


class FractionalMaxPool3d(torch.nn.FractionalMaxPool3d):
    """torch.nn.FractionalMaxPool3d, as `nn.functional.fractional_max_pool3d`."""

    def forward(self, input: Tensor) -> Any:
        return fractional_max_pool.fractional_max_pool3d(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,  # type: ignore[arg-type]
        )


class LPPool1d(torch.nn.LPPool1d):
    """torch.nn.LPPool1d, as `nn.functional.lp_pool1d`."""

    def forward(self, input: Tensor) -> Tensor:
        return lp_pool.lp_pool1d(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class LPPool2d(torch.nn.LPPool2d):
    """torch.nn.LPPool2d, as `nn.functional.lp_pool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return lp_pool.lp_pool2d(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class LPPool3d(torch.nn.LPPool3d):
    """torch.nn.LPPool3d, as `nn.functional.lp_pool3d`."""

    def forward(self, input: Tensor) -> Tensor:
        return lp_pool.lp_pool3d(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class AdaptiveMaxPool1d(torch.nn.AdaptiveMaxPool1d):
    """torch.nn.AdaptiveMaxPool1d, as `nn.functional.adaptive_max_pool1d`."""

    def forward(self, input: Tensor) -> Any:
        return max_pool.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(torch.nn.AdaptiveMaxPool2d):
    """torch.nn.AdaptiveMaxPool2d, as `nn.functional.adaptive_max_pool2d`."""

    def forward(self, input: Tensor) -> Any:
        return max_pool.adaptive_max_pool2d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(torch.nn.AdaptiveMaxPool3d):
    """torch.nn.AdaptiveMaxPool3d, as `nn.functional.adaptive_max_pool3d`."""

    def forward(self, input: Tensor) -> Any:
        return max_pool.adaptive_max_pool3d(input, self.output_size, self.return_indices)


class AdaptiveAvgPool1d(torch.nn.AdaptiveAvgPool1d):
    """torch.nn.AdaptiveAvgPool1d, as `nn.functional.adaptive_avg_pool1d`."""

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(torch.nn.AdaptiveAvgPool2d):
    """torch.nn.AdaptiveAvgPool2d, as `nn.functional.adaptive_avg_pool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool.adaptive_avg_pool2d(input, self.output_size)


class AdaptiveAvgPool3d(torch.nn.AdaptiveAvgPool3d):
    """torch.nn.AdaptiveAvgPool3d, as `nn.functional.adaptive_avg_pool3d`."""

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool.adaptive_avg_pool3d(input, self.output_size)
