"""A step of Adam or AdamW on a GPU (SPEC.md, "Adam"): elementwise, in place, over a list of tensors."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide, square_root
from repkernels.kernels.flat import TYPES, elements, flats, place, tensor_at
from repkernels.kernels.launch import launch
from repkernels.kernels.scalar import bits, scalar

PIECE = 16384  # elements of a program
SIZE = 1024  # elements at a time
REST = 256


@triton.jit
def adam_kernel(
    table, pieces, shrink: tl.int64, decay: tl.int64, first: tl.int64, keep: tl.int64, second: tl.int64,
    root: tl.int64, eps: tl.int64, rate: tl.int64, TYPE: tl.constexpr, WIDE: tl.constexpr, SHRINKING: tl.constexpr,
    DECAYING: tl.constexpr, AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr, ALIGNED: tl.constexpr,
    PIECE: tl.constexpr, SIZE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Scalars are bits of binary64 numbers; their meaning is that of `adam_steps`."""
    row, start, n = place(pieces, table, 5 if AMSGRAD else 4, PIECE)
    p, g = tensor_at(row, 0, TYPE, start), tensor_at(row, 1, TYPE, start)
    m, v = tensor_at(row, 2, WIDE, start), tensor_at(row, 3, WIDE, start)
    largest = tensor_at(row, 4 if AMSGRAD else 3, WIDE, start)
    shrink, decay, first, keep = scalar(shrink, WIDE), scalar(decay, WIDE), scalar(first, WIDE), scalar(keep, WIDE)
    second, root, eps, rate = scalar(second, WIDE), scalar(root, WIDE), scalar(eps, WIDE), scalar(rate, WIDE)
    # What has no mask is loaded and stored many elements at once.
    whole = n // SIZE * SIZE
    for at in range(0, whole, SIZE):
        i = at + tl.arange(0, SIZE)
        update(
            p, g, m, v, largest, i, None, shrink, decay, first, keep, second, root, eps, rate, SHRINKING, DECAYING,
            AMSGRAD, MAXIMIZE, ALIGNED,
        )  # fmt: skip
    for at in range(whole, n, REST):
        i = at + tl.arange(0, REST)
        update(
            p, g, m, v, largest, i, i < n, shrink, decay, first, keep, second, root, eps, rate, SHRINKING, DECAYING,
            AMSGRAD, MAXIMIZE, False,
        )  # fmt: skip


@triton.jit
def update(
    p, g, m, v, largest, i, mask, shrink, decay, first, keep, second, root, eps, rate, SHRINKING: tl.constexpr,
    DECAYING: tl.constexpr, AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    at_p, at_m, at_v = elements(p, i, ALIGNED), elements(m, i, ALIGNED), elements(v, i, ALIGNED)
    b, c = tl.load(at_m, mask=mask), tl.load(at_v, mask=mask)
    w = tl.load(at_p, mask=mask).to(b.dtype)
    d = tl.load(elements(g, i, ALIGNED), mask=mask).to(b.dtype)
    if MAXIMIZE:
        d = d * -1.0
    if DECAYING:
        d = d + decay * w
    if SHRINKING:
        w = w * shrink
    b = b + (d - b) * first
    c = c * keep + second * (d * d)
    tl.store(at_m, b, mask=mask)
    tl.store(at_v, c, mask=mask)
    if AMSGRAD:
        at_largest = elements(largest, i, ALIGNED)
        before = tl.load(at_largest, mask=mask)
        c = tl.where((c > before) | (c != c), c, before)
        tl.store(at_largest, c, mask=mask)
    w = w - rate * divide(b, divide(square_root(c), root) + eps)
    tl.store(at_p, w.to(p.dtype.element_ty), mask=mask)


def adam_steps(
    p: Sequence[Tensor], g: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor], largest: Sequence[Tensor],
    shrink: float, decay: float, first: float, keep: float, second: float, root: float, eps: float, rate: float,
    maximize: bool,
) -> None:  # fmt: skip
    """Updates p, m, v and, unless it is empty, largest: contiguous tensors of one device; p and g of one dtype, the
    others fp32, or fp64 for fp64.

    shrink: what p is multiplied by, unless 1. decay: the share of p in the gradient, unless 0. first, second: the
    shares of g in m and of g * g in v; keep: that of v in v. root: what sqrt(v) is divided by. rate: the step's size.
    """
    columns = [p, g, m, v] + ([largest] if largest else [])
    kind = p[0].dtype
    for flat in flats(columns, PIECE):
        launch(
            adam_kernel, (len(flat.pieces),), flat.table, flat.pieces, *map(bits, (shrink, decay, first, keep, second)),
            *map(bits, (root, eps, rate)), TYPE=TYPES[kind], WIDE=tl.float64 if kind == torch.float64 else tl.float32,
            SHRINKING=shrink != 1, DECAYING=decay != 0, AMSGRAD=bool(largest), MAXIMIZE=maximize,
            ALIGNED=flat.aligned, PIECE=PIECE, SIZE=SIZE, REST=REST,
        )  # fmt: skip
