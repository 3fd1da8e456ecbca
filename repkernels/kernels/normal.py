"""Normal numbers on a GPU (SPEC.md, "Random numbers"), by Box and Muller, two of two words."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import ln_f32
from repkernels.kernels.launch import launch
from repkernels.kernels.random import BLOCKS, grid, in_order, philox
from repkernels.kernels.rounded.trigonometric import sincospi
from repkernels.kernels.scalar import bits, scalar, signed


@triton.jit
def normal_pair(w, v):
    """Two standard normal numbers of two words."""
    u = ((w >> 8).to(tl.int32) + 1).to(tl.float32) * 0.000000059604644775390625
    r = tl.sqrt_rn(ln_f32(u) * -2.0)
    s, c = sincospi((v >> 8).to(tl.int32).to(tl.float32) * 0.00000011920928955078125)
    return r * c, r * s


@triton.jit
def normal_kernel(
    out, n, first: tl.int64, seed: tl.int64, stream: tl.int64, mean: tl.int64, std: tl.int64, BLOCKS: tl.constexpr
):
    """first: the first block's counter."""
    start = tl.program_id(0).to(tl.int64) * BLOCKS
    a, b, c, d = philox(first + start + tl.arange(0, BLOCKS), seed, stream)
    z0, z1 = normal_pair(a, b)
    z2, z3 = normal_pair(c, d)
    i = 4 * start + tl.arange(0, 4 * BLOCKS)
    y = in_order(z0, z1, z2, z3) * scalar(std, tl.float32) + scalar(mean, tl.float32)
    tl.store(out + i, y.to(out.dtype.element_ty), mask=i < n)


def normal(out: Tensor, seed: int, stream: int, mean: float, std: float, turn: int) -> None:
    """out, contiguous: N(mean, std^2), rounded to its dtype, from the words 2^34 * turn onwards."""
    launch(
        normal_kernel, grid(out, 4), out, out.numel(), turn << 32, signed(seed), signed(stream), bits(mean), bits(std),
        BLOCKS=BLOCKS,
    )  # fmt: skip
