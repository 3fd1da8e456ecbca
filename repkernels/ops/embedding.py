"""Rows of a table by index (SPEC.md, "Grouped sums"): the gradient of a row is the SUM over its positions."""

from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.grouped_sum import INDICES, NOTHING, take_rows


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` at `input`, torch.nn.functional.embedding's signature.

    input: (*), int64 or int32. weight: (N, C), fp32, bf16, fp16 or fp64, any strides. Result: (*, C), contiguous,
    in weight's dtype. padding_idx: a row that gets no gradient. scale_grad_by_freq: the gradient of a row is divided
    by the number of its positions. Bits of the gradient: SPEC.md, "Grouped sums": positions in ascending row-major
    order, one rounding to a half type, no atomic operations. Differentiable any number of times, with
    scale_grad_by_freq once.
    Raises IndexError for an index out of range (on a GPU a device-side assertion), RuntimeError for other shapes,
    dtypes of input and devices, AssertionError for a padding_idx out of range, as torch, and NotImplementedError for
    max_norm and sparse.
    """
    checks.operand("weight", weight)
    checks.operand("input", input, INDICES)
    if weight.ndim != 2:
        raise RuntimeError(f"weight: must be 2-D, (rows, columns), got shape {tuple(weight.shape)}")
    if input.device != weight.device:
        raise RuntimeError(f"input: on {input.device} but weight is on {weight.device}; move one of them")
    check_options(max_norm, sparse)
    rows = weight.shape[0]
    if padding_idx is not None:
        assert -rows <= padding_idx < rows, "Padding_idx must be within num_embeddings"
        padding_idx %= rows
    skip = NOTHING if padding_idx is None else padding_idx
    taken = take_rows(weight, input.reshape(-1), "input", skip, scale_grad_by_freq)
    return taken.view(*input.shape, weight.shape[1])


def check_options(max_norm: float | None, sparse: bool) -> None:
    """Raises for what changes the weight in the forward pass or gives a sparse gradient."""
    if max_norm is not None:
        raise NotImplementedError(
            "max_norm: changing the weight in the forward pass is not supported; clip it yourself"
        )
    if sparse:
        raise NotImplementedError("sparse: sparse gradients are not supported; use sparse=False")
