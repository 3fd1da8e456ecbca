"""A step of SGD on a GPU (SPEC.md, "SGD"): elementwise, in place."""

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch

SIZE = 1024


@triton.jit
def scalar(bits, WIDE: tl.constexpr):
    """The binary64 number of these bits, rounded once to WIDE: Triton passes a Python float as fp32 only."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(WIDE)


@triton.jit(do_not_specialize=["lr", "momentum", "share", "decay"])
def sgd_kernel(
    p, g, v, n, lr, momentum, share, decay, MOVING: tl.constexpr, DECAYING: tl.constexpr, NESTEROV: tl.constexpr,
    FIRST: tl.constexpr, MAXIMIZE: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """`share` of the gradient is added to the velocity."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = i < n
    w = tl.load(p + i, mask=mask).to(WIDE)
    d = tl.load(g + i, mask=mask).to(WIDE)
    if MAXIMIZE:
        d = d * -1.0
    if DECAYING:
        d = d + scalar(decay, WIDE) * w
    if MOVING:
        if FIRST:
            b = d
        else:
            b = scalar(momentum, WIDE) * tl.load(v + i, mask=mask) + scalar(share, WIDE) * d
        tl.store(v + i, b, mask=mask)
        if NESTEROV:
            d = d + scalar(momentum, WIDE) * b
        else:
            d = b
    tl.store(p + i, (w - scalar(lr, WIDE) * d).to(p.dtype.element_ty), mask=mask)


def sgd_step(
    p: Tensor, g: Tensor, v: Tensor | None, lr: float, momentum: float, dampening: float, weight_decay: float,
    nesterov: bool, first: bool, maximize: bool,
) -> None:  # fmt: skip
    """Updates p and, if momentum is not 0, its velocity v. Scalars: computed in binary64, rounded once to v's format.

    p, g: the same shape and dtype, any strides. v: fp32, or fp64 for fp64; not read where `first`; None without
    momentum.
    """
    where_p, where_v = p.contiguous(), None if v is None else v.contiguous()
    scalars = (_bits(lr), _bits(momentum), _bits(1 - dampening), _bits(weight_decay))
    launch(
        sgd_kernel, (triton.cdiv(p.numel(), SIZE),), where_p, g.contiguous(), where_p if where_v is None else where_v,
        p.numel(), *scalars, MOVING=momentum != 0, DECAYING=weight_decay != 0, NESTEROV=nesterov, FIRST=first,
        MAXIMIZE=maximize, WIDE=tl.float64 if p.dtype == torch.float64 else tl.float32, SIZE=SIZE,
    )  # fmt: skip
    if where_p is not p:
        p.copy_(where_p)
    if v is not None and where_v is not None and where_v is not v:
        v.copy_(where_v)


def _bits(number: float) -> int:
    return struct.unpack("<q", struct.pack("<d", number))[0]
