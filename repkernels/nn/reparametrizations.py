"""torch's weight and spectral norm over this library's operations (SPEC.md, "Reparametrised weights").

Each in torch's two kinds: as a parametrization, and as a hook that runs before the module. Only `convert` makes them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm as TorchSpectralNorm
from torch.nn.utils.weight_norm import WeightNorm as TorchWeightNorm

from repkernels.ops.arithmetic import div
from repkernels.ops.extrema import maximum
from repkernels.ops.matmul import matmul
from repkernels.ops.norm import norm
from repkernels.ops.plain import multiply


def norm_except(v: Tensor, dim: int) -> Tensor:
    """The Euclidean norm over all axes but `dim`, of size 1 then; for dim = -1 over all, without axes, as in torch."""
    return norm(v) if dim == -1 else norm(v, 2, [d for d in range(v.ndim) if d != dim], keepdim=True)


def normed_weight(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """v * (g / |v|)."""
    return multiply(v, div(g, norm_except(v, dim)))


def unit(x: Tensor, eps: float) -> Tensor:
    """x / MAX(|x|, eps) of a vector, as torch.nn.functional.normalize."""
    return div(x, maximum(norm(x), torch.full((), eps, dtype=x.dtype, device=x.device)))


def iterate(matrix: Tensor, u: Tensor, v: Tensor, times: int, eps: float, v_first: bool) -> None:
    """Steps of the power method, written into u and v."""
    with torch.no_grad():
        for _ in range(times):
            for left in (not v_first, v_first):
                x, factor, y = (u, matrix, v) if left else (v, matrix.t(), u)
                x.copy_(unit(matmul(factor, y), eps))


def spectral(weight: Tensor, matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """weight / (u . (matrix @ v)). u and v are copied, since a later forward pass overwrites them."""
    return div(weight, matmul(u.clone(), matmul(matrix, v.clone())))


class _WeightNorm(parametrizations._WeightNorm):
    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return normed_weight(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except(weight, self.dim), weight


class _SpectralNorm(parametrizations._SpectralNorm):
    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return unit(weight, self.eps)
        matrix = self._reshape_weight_to_matrix(weight)
        u, v = self._buffers["_u"], self._buffers["_v"]
        assert u is not None and v is not None
        if self.training:
            iterate(matrix, u, v, self.n_power_iterations, self.eps, v_first=False)
        return spectral(weight, matrix, u, v)


class WeightNorm(TorchWeightNorm):
    def compute_weight(self, module: torch.nn.Module) -> Any:
        return normed_weight(getattr(module, self.name + "_v"), getattr(module, self.name + "_g"), self.dim)


class SpectralNorm(TorchSpectralNorm):
    def compute_weight(self, module: torch.nn.Module, do_power_iteration: bool) -> Tensor:
        weight, u, v = (getattr(module, self.name + end) for end in ("_orig", "_u", "_v"))
        matrix = self.reshape_weight_to_matrix(weight)
        if do_power_iteration:
            iterate(matrix, u, v, self.n_power_iterations, self.eps, v_first=True)
        return spectral(weight, matrix, u, v)


MODULES = (_WeightNorm, _SpectralNorm)
HOOKS = (WeightNorm, SpectralNorm)
