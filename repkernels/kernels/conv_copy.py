"""Memory formats of a convolution's operands, and copies from one to the other."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2


@triton.jit
def turn_kernel(src, dst, A, B, BA: tl.constexpr, BB: tl.constexpr):
    """dst (N, B, A) from src (N, A, B), both contiguous."""
    tiles_b = tl.cdiv(B, BB)
    tiles = tl.cdiv(A, BA) * tiles_b
    tile = tl.program_id(0) % tiles
    top = (tl.program_id(0) // tiles).to(tl.int64) * A * B
    a = (tile // tiles_b * BA + tl.arange(0, BA))[:, None]
    b = (tile % tiles_b * BB + tl.arange(0, BB))[None, :]
    mask = (a < A) & (b < B)
    v = tl.load(src + top + a.to(tl.int64) * B + b, mask=mask)
    tl.store(dst + top + b.to(tl.int64) * A + a, v, mask=mask)


def is_channels_last(t: Tensor) -> bool:
    """Whether t (N, C, D, H, W) is dense with channels innermost, and channels_first would not do as well."""
    return t.shape[1] > 1 and t.permute(0, 2, 3, 4, 1).is_contiguous()


def channels_first(t: Tensor) -> Tensor:
    """t (N, C, D, H, W) contiguous."""
    if t.is_contiguous() or not is_channels_last(t):
        return t.contiguous()
    out = torch.empty(t.shape, dtype=t.dtype, device=t.device)
    _turn(t, out, len(t), t[0, 0].numel(), t.shape[1])
    return out


def channels_last_rows(t: Tensor) -> Tensor:
    """t (N, C, D, H, W) as contiguous rows (N * D * H * W, C), a view where it is one already."""
    if t.is_contiguous() and not is_channels_last(t):
        out = t.new_empty((t.numel() // t.shape[1], t.shape[1]))
        _turn(t, out, len(t), t.shape[1], t[0, 0].numel())
        return out
    return t.permute(0, 2, 3, 4, 1).reshape(-1, t.shape[1]).contiguous()  # of a slice, reshape is a view with gaps


def _turn(src: Tensor, dst: Tensor, N: int, A: int, B: int) -> None:
    BA, BB = (min(64, next_power_of_2(size)) for size in (A, B))
    launch(turn_kernel, (N * cdiv(A, BA) * cdiv(B, BB),), src, dst, A, B, BA=BA, BB=BB, num_warps=4)
