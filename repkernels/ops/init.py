"""Initial values that are more than one draw (SPEC.md, "Initialisation")."""

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.random import check_capture
from repkernels.subnormals import subnormals_kept

TURNS = 256


def trunc_normal(tensor: Tensor, key: tuple[int, int], mean: float, std: float, low: float, high: float) -> Tensor:
    """N(mean, std^2) within [low, high] by drawing again what is outside, in place."""
    if tensor.is_meta:
        return tensor
    check_capture(tensor.device)
    kernels = backend("normal", tensor.device.type)
    out = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    kernels.normal(out, *key, mean, std, 0)
    again = torch.empty_like(out)
    with subnormals_kept():
        bounds = torch.tensor([low, high], dtype=torch.float64, device="cpu").to(torch.float32).to(tensor.device)
        for turn in range(1, TURNS):
            outside = (out < bounds[0]) | (out > bounds[1])
            if not outside.any():
                break
            kernels.normal(again, *key, mean, std, turn)
            out = torch.where(outside, again, out)
        return tensor.copy_(torch.clamp(out, bounds[0], bounds[1]))


def orthogonal(tensor: Tensor, key: tuple[int, int], gain: float) -> Tensor:
    """Orthonormal rows, or columns if they are fewer, times gain, in place; computed on the CPU."""
    rows = tensor.shape[0]
    drawn = torch.empty((rows, tensor.numel() // rows), dtype=torch.float32, device="cpu")
    backend("normal", "cpu").normal(drawn, *key, 0.0, 1.0, 0)
    vectors = (drawn if rows <= drawn.shape[1] else drawn.t()).double().contiguous()
    backend("init", "cpu").orthonormalise(vectors, gain)
    matrix = vectors if rows <= drawn.shape[1] else vectors.t()
    with subnormals_kept():
        if tensor.dtype != torch.float64:
            matrix = matrix.float()
        return tensor.copy_(matrix.reshape(tensor.shape))
