"""torch.nn's softmax modules over this library's operations."""

import torch
from torch import Tensor

from repkernels.ops.softmax import log_softmax, softmax, softmin


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax, as `nn.functional.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.dim, _stacklevel=5)


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax, as `nn.functional.log_softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, self.dim, _stacklevel=5)


class Softmin(torch.nn.Softmin):
    """torch.nn.Softmin, as `nn.functional.softmin`."""

    def forward(self, input: Tensor) -> Tensor:
        return softmin(input, self.dim, _stacklevel=5)


class Softmax2d(torch.nn.Softmax2d):
    """torch.nn.Softmax2d: over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"input: expected 3 or 4 dimensions, got shape {tuple(input.shape)}")
        return softmax(input, -3)
