"""How often each integer occurs, or the SUM of its weights in ascending position (SPEC.md, "Grouped sums")."""

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.convert import converted
from repkernels.ops.grouped_sum import grouped_sum


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0 .. max(input) occurs in `input`, torch.bincount's signature.

    input: (P,), nonnegative integers. weights: (P,): the SUM of the weights at the positions of each integer instead,
    fp32 of fp32, otherwise fp64, as torch. Result: at least `minlength` long, int64 without weights.
    Unlike torch, differentiable by weights.
    Raises RuntimeError for negative elements, other shapes and devices, NotImplementedError for other dtypes.
    """
    checks.operand("input", input, reduce.INTEGERS[1:])
    if weights is not None:
        checks.operand("weights", weights, (*checks.FLOATS, *reduce.INTEGERS))
        if weights.shape != input.shape:
            raise RuntimeError(f"weights: expected input's shape {tuple(input.shape)}, got {tuple(weights.shape)}")
        if weights.device != input.device:
            raise RuntimeError(f"weights: on {weights.device} but input is on {input.device}; move one of them")
    counts = torch.bincount(input, minlength=minlength)  # of integers: exact in any order
    if weights is None:
        return counts
    terms = weights if weights.dtype == torch.float32 else converted(weights, torch.float64)
    return grouped_sum(terms[:, None], input.long(), counts.shape[0]).view(-1)
