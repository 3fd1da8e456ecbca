"""Times of an exponential race on a GPU (SPEC.md, "Random numbers"): who is drawn without replacement."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.random import BLOCKS, grid, philox, word64
from repkernels.kernels.rounded.logarithm import log1p
from repkernels.kernels.scalar import signed


@triton.jit
def race_kernel(out, weights, n, seed: tl.int64, stream: tl.int64, BLOCKS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    a, b, c, d = philox(first + tl.arange(0, BLOCKS), seed, stream)
    # The word's 63 highest bits, since only signed integers are converted alike everywhere.
    word = (tl.interleave(word64(a, b), word64(c, d)) >> 1).to(tl.int64)
    v = word.to(tl.float32) * 1.0842021724855044e-19
    i = 2 * first + tl.arange(0, 2 * BLOCKS)
    weight = tl.load(weights + i, mask=i < n, other=0.0)
    time = tl.div_rn(log1p(v * -1.0) * -1.0, weight).to(tl.int32, bitcast=True)
    tl.store(out + i, tl.where(weight > 0.0, time, 0x7FFFFFFF), mask=i < n)


def race(out: Tensor, seed: int, stream: int, weights: Tensor) -> None:
    """out, contiguous int32: the bits of each element's time, an exponential variable over its weight (fp32)."""
    launch(race_kernel, grid(out, 2), out, weights, out.numel(), signed(seed), signed(stream), BLOCKS=BLOCKS)
