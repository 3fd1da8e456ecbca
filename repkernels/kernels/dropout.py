"""Dropout on a GPU (SPEC.md, "Dropout"): elementwise, by the words of a stream."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.random import BLOCKS, in_order, philox, quotient, reciprocal_of
from repkernels.kernels.scalar import bits, scalar, signed
from repkernels.kernels.sizes import cdiv


@triton.jit
def dropout_kernel(
    x, out, n, inner, reciprocal: tl.int64, seed: tl.int64, stream: tl.int64, threshold: tl.int64, scale: tl.int64,
    shift: tl.int64, dropped: tl.int64, SHARED: tl.constexpr, SHIFTED: tl.constexpr, WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """SHARED: `inner` elements share a word; reciprocal: that of `inner`."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    i = 4 * first + tl.arange(0, 4 * BLOCKS)
    if SHARED:
        j = quotient(i, inner, reciprocal)
        a, b, c, d = philox(j >> 2, seed, stream)
        place = j & 3
        word = tl.where(place == 0, a, tl.where(place == 1, b, tl.where(place == 2, c, d)))
    else:
        a, b, c, d = philox(first + tl.arange(0, BLOCKS), seed, stream)
        word = in_order(a, b, c, d)
    y = tl.load(x + i, mask=i < n, other=0.0).to(WIDE) * scalar(scale, WIDE)
    if SHIFTED:
        y = y + scalar(shift, WIDE)
    y = tl.where(word.to(tl.int64) < threshold, y, scalar(dropped, WIDE))
    tl.store(out + i, y.to(out.dtype.element_ty), mask=i < n)


def dropout(
    x: Tensor, seed: int, stream: int, threshold: int, scale: float, shift: float, dropped: float, inner: int
) -> Tensor:
    """RN(RN(x * scale) + shift) where the element's word is below `threshold`, else `dropped`; x contiguous.

    Elements inner * j .. inner * j + inner - 1 share word j. shift 0: nothing is added. Scalars: rounded once.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(
        dropout_kernel, (cdiv(x.numel(), 4 * BLOCKS),), x, out, x.numel(), inner, reciprocal_of(max(inner, 1)),
        signed(seed), signed(stream), threshold, bits(scale), bits(shift), bits(dropped), SHARED=inner != 1,
        SHIFTED=shift != 0, WIDE=tl.float64 if x.dtype == torch.float64 else tl.float32, BLOCKS=BLOCKS,
    )  # fmt: skip
    return out
