"""torch.nn.init's names, drawn by Philox (repkernels.random), so that a model starts with the same bits everywhere.

Every draw takes one stream of the process's generator, or of `generator=` (a `repkernels.random.Generator`), also on
the meta device: later parameters do not depend on where this one lives. Bounds and deviations are computed in binary64
by +, -, *, / and square root. SPEC.md, "Initialisation".
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.init import constant_, dirac_, eye_, ones_, zeros_

from repkernels import generator as streams
from repkernels import random
from repkernels.ops import init as rules
from repkernels.ops import random as draws
from repkernels.random import Generator

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


@torch.no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills `tensor` in place from U(a, b) (`random.uniform`, one stream) and returns it."""
    options: Any = {"dtype": tensor.dtype, "device": tensor.device, "generator": generator}
    return tensor.copy_(random.uniform(tensor.shape, a, b, **options))


@torch.no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills `tensor` in place from N(mean, std^2) (`random.normal`, one stream) and returns it."""
    options: Any = {"dtype": tensor.dtype, "device": tensor.device, "generator": generator}
    return tensor.copy_(random.normal(tensor.shape, mean, std, **options))


@torch.no_grad()
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fills `tensor` in place from N(mean, std^2) within [a, b] and returns it.

    Elements outside are drawn again, up to 256 times, from words 2^34 further on in the same stream; what is outside
    then is moved to the nearer bound. Raises NotImplementedError where [a, b] holds less than a tenth of the
    distribution, ValueError for a > b and std < 0.
    """
    if not (a <= b and std >= 0):
        raise ValueError(f"a, b and std: expected a <= b and std >= 0, got {a}, {b} and {std}")
    inside = _cumulative(b, mean, std) - _cumulative(a, mean, std)
    if inside < 0.1:
        raise NotImplementedError(f"a and b: [{a}, {b}] holds {inside:.1%} of the distribution; 10% is the least")
    return rules.trunc_normal(tensor, streams.chosen(generator).next_stream(), mean, std, a, b)


def _cumulative(x: float, mean: float, std: float) -> float:
    """The share of the distribution below x, roughly: no bit of a result depends on it."""
    if std == 0:
        return float(x >= mean) if x > mean or x < mean else 0.5
    return 0.5 * math.erfc((mean - x) / (std * math.sqrt(2)))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills `tensor` in place from U(-bound, bound), bound = sqrt(3) * gain * sqrt(2 / (fan_in + fan_out))."""
    bound = math.sqrt(3.0) * _xavier(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills `tensor` in place from N(0, std^2), std = gain * sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, _xavier(tensor, gain), generator)


def _xavier(tensor: Tensor, gain: float) -> float:
    fans = torch.nn.init._calculate_fan_in_and_fan_out(tensor)
    return gain * math.sqrt(2.0 / sum(fans)) if sum(fans) else 0.0


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills `tensor` in place from U(-bound, bound), bound = sqrt(3 / fan) * gain, and returns it.

    mode, nonlinearity: torch's names, with torch's gain and fan; the bound is computed in binary64.
    """
    fan = torch.nn.init._calculate_correct_fan(tensor, mode)
    bound = math.sqrt(3.0 / fan) * calculate_gain(nonlinearity, a) if fan else 0.0
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills `tensor` in place from N(0, std^2), std = gain / sqrt(fan), and returns it."""
    fan = torch.nn.init._calculate_correct_fan(tensor, mode)
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(fan) if fan else 0.0, generator)


def calculate_gain(nonlinearity: Any, param: Any = None) -> float:
    """torch.nn.init.calculate_gain, without a power that libm would compute: sqrt(2 / (1 + a * a)) for leaky_relu."""
    if nonlinearity == "leaky_relu" and isinstance(param, int | float) and not isinstance(param, bool):
        return math.sqrt(2.0 / (1 + param * param))
    return torch.nn.init.calculate_gain(nonlinearity, param)


@torch.no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills `tensor` in place with a (semi-)orthogonal matrix, of (rows, rest of the axes), times `gain`.

    The rows, or the columns if they are fewer, of a matrix of standard normal numbers (one stream) are made orthonormal
    one after another by the modified method of Gram and Schmidt in binary64, on the CPU; then gain, then one rounding.
    Raises ValueError for fewer than 2 dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError(f"tensor: expected 2 dimensions or more, got shape {tuple(tensor.shape)}")
    stream = streams.chosen(generator).next_stream()
    return tensor if tensor.is_meta or tensor.numel() == 0 else rules.orthogonal(tensor, stream, gain)


@torch.no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fills the 2-D `tensor` in place from N(0, std^2) (one stream), ceil(sparsity * rows) zeros in each column.

    The zeros of a column are the elements with its smallest 64-bit words of the next stream. Raises ValueError for
    another number of dimensions and sparsity outside of [0, 1].
    """
    if tensor.ndim != 2:
        raise ValueError(f"tensor: expected 2 dimensions, got shape {tuple(tensor.shape)}")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity: expected a value between 0 and 1, got {sparsity}")
    normal_(tensor, 0.0, std, generator)
    words = draws.keys(streams.chosen(generator).next_stream(), tensor.shape, tensor.device)
    if tensor.is_meta:
        return tensor
    lowest = words.sort(dim=0, stable=True).indices[: math.ceil(sparsity * len(tensor))]
    return tensor.scatter_(0, lowest, 0)


def linear_bound(fan_in: int) -> float:
    """The bound of a linear layer's weight and bias: 1 / sqrt(fan_in), 0 for no inputs."""
    return 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
