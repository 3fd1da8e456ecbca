"""Randomised leaky ReLU (SPEC.md, "rrelu"): prelu with a slope for each element, drawn from the next stream."""

from torch import Tensor

from repkernels import random
from repkernels.ops import checks
from repkernels.ops.activations import leaky_relu
from repkernels.ops.elementwise import elementwise


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """x where x > 0, otherwise x * r, r uniform in [lower, upper); torch.nn.functional.rrelu's signature.

    In training the slopes are `repkernels.random.uniform` of input's shape, row-major, rounded to its dtype: one
    stream for each call. Otherwise r = (lower + upper) / 2. input: fp32, bf16, fp16 or fp64.
    """
    checks.operand("input", input)
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slopes = random.uniform(tuple(input.shape), lower, upper, dtype=input.dtype, device=input.device)
    result = elementwise("prelu", input.clone() if inplace else input, slopes)
    return input.copy_(result) if inplace else result
