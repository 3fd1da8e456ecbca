"""batch_norm on a GPU (SPEC.md, "batch_norm"): sums over each channel, then an elementwise pass.

x (N, C, S), whose channels lie along memory, or (N, C), where they are neighbours.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide, square_root
from repkernels.kernels.launch import launch
from repkernels.kernels.norm_apply import COLUMN, TYPES, Axes, apply, gradient, scaled
from repkernels.kernels.norm_sums import SIZE, column_statistics, pair_sums
from repkernels.kernels.scalar import bits, scalar
from repkernels.kernels.sizes import cdiv


@triton.jit
def running_kernel(
    running_mean, running_var, mean, squares, new_mean, new_var, C, others, keep, take, SIZE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """keep * running + take * batch for mean and variance; others: the number of terms less one."""
    c = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    k, t = scalar(keep, WIDE), scalar(take, WIDE)
    var = divide(tl.load(squares + c, mask=c < C, other=0.0), tl.zeros((SIZE,), WIDE) + others)
    old = tl.load(running_mean + c, mask=c < C, other=0.0).to(WIDE)
    moved = k * old + t * tl.load(mean + c, mask=c < C, other=0.0)
    tl.store(new_mean + c, moved.to(new_mean.dtype.element_ty), mask=c < C)
    old = tl.load(running_var + c, mask=c < C, other=0.0).to(WIDE)
    tl.store(new_var + c, (k * old + t * var).to(new_var.dtype.element_ty), mask=c < C)


@triton.jit
def evaluation_kernel(
    running_mean, running_var, mean, inverse, C, EPS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr
):
    """mean = running_mean; inverse = div_rn(1, sqrt_rn(RN(running_var + eps)))."""
    c = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(mean + c, tl.load(running_mean + c, mask=c < C, other=0.0).to(WIDE), mask=c < C)
    v = tl.load(running_var + c, mask=c < C, other=1.0).to(WIDE) + tl.full((SIZE,), EPS, WIDE)
    tl.store(inverse + c, divide(tl.full((SIZE,), 1.0, WIDE), square_root(v)), mask=c < C)


def training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (N, C, S) or (N, C), not empty -> y like x, mean (C,), r (C,), and the new running statistics in their dtypes.

    mean and r in the computing format. The running statistics are both given, (C,), or both None and then empty.
    """
    x = x.contiguous()
    channels = x.shape[1]
    mean, squares, inverse = column_statistics(_columns(x), eps)
    new_mean, new_var = mean.new_empty(0), mean.new_empty(0)
    if running_mean is not None and running_var is not None:
        old = [v.contiguous() for v in (running_mean, running_var)]
        new_mean, new_var = (torch.empty_like(v) for v in old)
        launch(
            running_kernel, (cdiv(channels, SIZE),), *old, mean, squares, new_mean, new_var, channels,
            x.numel() // channels - 1, bits(1 - momentum), bits(momentum), SIZE=SIZE, WIDE=TYPES[mean.dtype],
        )  # fmt: skip
    return _applied(x, mean, inverse, weight, bias), mean, inverse, new_mean, new_var


def evaluation(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x (N, C, S) or (N, C) -> y like x, mean (C,) and r (C,) in the computing format."""
    x = x.contiguous()
    channels = x.shape[1]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, inverse = (torch.empty(channels, dtype=wide, device=x.device) for _ in range(2))
    launch(
        evaluation_kernel, (cdiv(channels, SIZE),), running_mean.contiguous(), running_var.contiguous(), mean,
        inverse, channels, EPS=float(eps), SIZE=SIZE, WIDE=TYPES[wide],
    )  # fmt: skip
    return _applied(x, mean, inverse, weight, bias), mean, inverse


def backward(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, trained: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: of x in its dtype, of weight and bias (C,) in the computing format. trained: of `training`."""
    g, x = grad.contiguous(), x.contiguous()
    products, plain = pair_sums(_columns(g), _columns(x), mean, inverse, None, 1)
    scale = inverse if weight is None else weight.to(inverse.dtype) * inverse
    dx = torch.empty_like(x)
    matrix, axes = _matrix(x)
    if trained:
        count = torch.full_like(inverse, x.numel() // x.shape[1])
        a, b = products / count, plain / count
        gradient(_matrix(g)[0], matrix, mean, inverse, None, a, b, scale, _matrix(dx)[0], axes)
    else:
        scaled(_matrix(g)[0], scale, _matrix(dx)[0], axes)
    return dx, products, plain


def _applied(x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = torch.empty_like(x)
    w, b = (None if v is None else v.contiguous() for v in (weight, bias))
    matrix, axes = _matrix(x)
    apply(matrix, mean, inverse, w, b, _matrix(y)[0], axes)
    return y


def _columns(x: Tensor) -> Tensor:
    """The terms of each channel as the rows of (R1, R2, 1, C)."""
    return x[None, :, None] if x.ndim == 2 else x.movedim(1, 2)[:, :, None]


def _matrix(x: Tensor) -> tuple[Tensor, Axes]:
    """x as a matrix for the elementwise pass, and where its channels are."""
    channels = x.shape[1]
    if x.ndim == 2:
        return x, COLUMN
    return x.view(-1, x.shape[2]), Axes(True, True, mod=channels, weights=channels)
