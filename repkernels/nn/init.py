"""torch.nn.init's names, drawn by Philox (repkernels.random), so that a model starts with the same bits everywhere."""

import math
from typing import Any

import torch
from torch import Tensor

from repkernels import random


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fills `tensor` in place from U(a, b) (`random.uniform`, one stream) and returns it."""
    with torch.no_grad():
        if tensor.is_meta:
            random.next_stream()  # later parameters then do not depend on where this one lives
            return tensor
        return tensor.copy_(random.uniform(tensor.shape, a, b, dtype=tensor.dtype))


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: Any = "fan_in", nonlinearity: Any = "leaky_relu") -> Tensor:
    """Fills `tensor` in place from U(-bound, bound), bound = gain * sqrt(3 / fan), and returns it.

    mode, nonlinearity: torch's names, with torch's gain and fan; the bound is computed in binary64.
    """
    fan = torch.nn.init._calculate_correct_fan(tensor, mode)
    bound = math.sqrt(3.0 / fan) * torch.nn.init.calculate_gain(nonlinearity, a) if fan else 0.0
    return uniform_(tensor, -bound, bound)


def linear_bound(fan_in: int) -> float:
    """The bound of a linear layer's weight and bias: 1 / sqrt(fan_in), 0 for no inputs."""
    return 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
