"""A step of SGD on a GPU (SPEC.md, "SGD"): elementwise, in place, over a list of tensors."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.flat import TYPES, elements, flats, place, tensor_at
from repkernels.kernels.launch import launch
from repkernels.kernels.scalar import bits, scalar

PIECE = 16384  # elements of a program
SIZE = 1024  # elements at a time
REST = 256


@triton.jit
def sgd_kernel(
    table, pieces, lr: tl.int64, momentum: tl.int64, share: tl.int64, decay: tl.int64, TYPE: tl.constexpr,
    WIDE: tl.constexpr, MOVING: tl.constexpr, DECAYING: tl.constexpr, NESTEROV: tl.constexpr, FIRST: tl.constexpr,
    MAXIMIZE: tl.constexpr, ALIGNED: tl.constexpr, PIECE: tl.constexpr, SIZE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """`share` of the gradient is added to the velocity. Scalars are bits of binary64 numbers."""
    row, start, n = place(pieces, table, 3 if MOVING else 2, PIECE)
    p, g = tensor_at(row, 0, TYPE, start), tensor_at(row, 1, TYPE, start)
    v = tensor_at(row, 2 if MOVING else 1, WIDE, start)
    lr, momentum, share, decay = scalar(lr, WIDE), scalar(momentum, WIDE), scalar(share, WIDE), scalar(decay, WIDE)
    # What has no mask is loaded and stored many elements at once.
    whole = n // SIZE * SIZE
    for at in range(0, whole, SIZE):
        i = at + tl.arange(0, SIZE)
        update(p, g, v, i, None, lr, momentum, share, decay, WIDE, MOVING, DECAYING, NESTEROV, FIRST, MAXIMIZE, ALIGNED)
    for at in range(whole, n, REST):
        i = at + tl.arange(0, REST)
        update(p, g, v, i, i < n, lr, momentum, share, decay, WIDE, MOVING, DECAYING, NESTEROV, FIRST, MAXIMIZE, False)


@triton.jit
def update(
    p, g, v, i, mask, lr, momentum, share, decay, WIDE: tl.constexpr, MOVING: tl.constexpr, DECAYING: tl.constexpr,
    NESTEROV: tl.constexpr, FIRST: tl.constexpr, MAXIMIZE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    at_p = elements(p, i, ALIGNED)
    w = tl.load(at_p, mask=mask).to(WIDE)
    d = tl.load(elements(g, i, ALIGNED), mask=mask).to(WIDE)
    if MAXIMIZE:
        d = d * -1.0
    if DECAYING:
        d = d + decay * w
    if MOVING:
        at_v = elements(v, i, ALIGNED)
        if FIRST:
            b = d
        else:
            b = momentum * tl.load(at_v, mask=mask) + share * d
        tl.store(at_v, b, mask=mask)
        if NESTEROV:
            d = d + momentum * b
        else:
            d = b
    tl.store(at_p, (w - lr * d).to(p.dtype.element_ty), mask=mask)


def sgd_steps(
    p: Sequence[Tensor], g: Sequence[Tensor], v: Sequence[Tensor], lr: float, momentum: float, dampening: float,
    weight_decay: float, nesterov: bool, first: bool, maximize: bool,
) -> None:  # fmt: skip
    """Updates p and, if momentum is not 0, its velocity v. Scalars: computed in binary64, rounded once to v's format.

    p, g: contiguous tensors of one dtype and device. v: fp32, or fp64 for fp64; not read where `first`; empty without
    momentum.
    """
    columns = [p, g, v] if momentum != 0 else [p, g]
    kind = p[0].dtype
    for flat in flats(columns, PIECE):
        launch(
            sgd_kernel, (len(flat.pieces),), flat.table, flat.pieces, bits(lr), bits(momentum), bits(1 - dampening),
            bits(weight_decay), TYPE=TYPES[kind], WIDE=tl.float64 if kind == torch.float64 else tl.float32,
            MOVING=momentum != 0, DECAYING=weight_decay != 0, NESTEROV=nesterov, FIRST=first, MAXIMIZE=maximize,
            ALIGNED=flat.aligned, PIECE=PIECE, SIZE=SIZE, REST=REST,
        )  # fmt: skip
