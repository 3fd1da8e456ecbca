"""Bags of rows of a table (SPEC.md, "embedding_bag"): what is sent to one bag is summed in ascending position."""

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.elementwise import elementwise
from repkernels.ops.embedding import check_options
from repkernels.ops.grouped_sum import INDICES, NOTHING, grouped_sum, take_rows
from repkernels.ops.index_add import gather

MODES = ("sum", "mean", "max")


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of the rows of `weight` in bags of indices: torch.nn.functional.embedding_bag's signature.

    input: (B, n), or (P,) with offsets (B,), where bags begin (with include_last_offset and the last one's end, (B +
    1,)); int64 or int32. weight: (N, C), fp32, bf16, fp16 or fp64. per_sample_weights: input's shape, mode "sum", of
    weight's dtype. padding_idx: an index that counts for nothing. Result: (B, C), +0 for an empty bag.
    Bits: SPEC.md, "embedding_bag". Differentiable any number of times (scale_grad_by_freq: once).
    Raises ValueError and RuntimeError where torch does, IndexError for an index out of range (on a GPU a device-side
    assertion), NotImplementedError for max_norm, sparse, per_sample_weights beside another mode than "sum", and other
    dtypes.
    """
    checks.operand("weight", weight)
    checks.operand("input", input, INDICES)
    check_options(max_norm, sparse)
    if mode not in MODES:
        raise ValueError(f"mode: has to be one of sum, mean or max, got {mode!r}")
    if weight.ndim != 2:
        raise ValueError(f"weight: has to be a 2D Tensor, (rows, columns), got shape {tuple(weight.shape)}")
    if input.device != weight.device:
        raise RuntimeError(f"input: on {input.device} but weight is on {weight.device}; move one of them")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq: max mode does not support scaling the gradient by the frequency")
    factors = _checked_factors(per_sample_weights, input, weight, mode)
    bag, bags = _bags(input, offsets, include_last_offset)
    index = input.reshape(-1)
    rows = weight.shape[0]
    skip = NOTHING
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise RuntimeError(f"padding_idx: must be within the {rows} rows of weight, got {padding_idx}")
        skip = padding_idx % rows
        bag = bag.masked_fill(index == skip, bags)
    taken = take_rows(weight, index, "input", skip, scale_grad_by_freq)
    if mode == "max":
        return _largest(taken, bag, bags)
    if mode == "sum" and factors is None:
        return grouped_sum(taken, bag, bags + 1)[:bags]
    terms = taken if taken.dtype == torch.float64 else taken.float()
    if factors is not None:
        total = grouped_sum(
            elementwise("addcmul_gradient", terms, factors.to(terms.dtype)[:, None], s=1.0), bag, bags + 1
        )
    else:
        counts = torch.zeros(bags + 1, dtype=torch.int64, device=bag.device).scatter_add(0, bag, torch.ones_like(bag))
        total = grouped_sum(terms, bag, bags + 1)
        total = elementwise("div", total, counts.clamp(min=1).to(total.dtype)[:, None])
    return total[:bags].to(weight.dtype)


def _checked_factors(factors: Tensor | None, input: Tensor, weight: Tensor, mode: str) -> Tensor | None:
    if factors is None:
        return None
    if mode != "sum":
        raise NotImplementedError(f"per_sample_weights: only supported for mode='sum', got mode={mode!r}")
    checks.operand("per_sample_weights", factors)
    checks.same("per_sample_weights", factors, "weight", weight)
    if factors.shape != input.shape:
        raise ValueError(
            f"per_sample_weights: shape {tuple(factors.shape)} must be that of input, {tuple(input.shape)}"
        )
    return factors.reshape(-1)


def _bags(input: Tensor, offsets: Tensor | None, include_last: bool) -> tuple[Tensor, int]:
    """(the bag of each position, int64; the number of bags); what lies behind the last bag is in that number."""
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError("offsets: has to be None if input is 2D, a batch of bags of one length")
        bags, length = input.shape
        return torch.arange(bags, device=input.device).repeat_interleave(length), bags
    if input.ndim != 1:
        raise ValueError(f"input: has to be 1D or 2D Tensor, got {input.ndim} dimensions")
    if offsets is None:
        raise ValueError("offsets: has to be a 1D Tensor but got None")
    checks.operand("offsets", offsets, INDICES)
    if offsets.ndim != 1:
        raise ValueError(f"offsets: has to be a 1D Tensor, got {offsets.ndim} dimensions")
    if offsets.device != input.device:
        raise RuntimeError(f"offsets: on {offsets.device} but input is on {input.device}; move one of them")
    if include_last and not offsets.numel():
        raise RuntimeError("include_last_offset: number of offsets should be at least 1")
    bags = offsets.numel() - include_last
    offsets = offsets.long().contiguous()
    count = input.numel()
    if offsets.is_cpu and offsets.numel():
        _check_offsets(offsets, count)
    places = torch.arange(count, device=input.device)
    return torch.searchsorted(offsets, places, right=True) - 1, bags


def _check_offsets(offsets: Tensor, count: int) -> None:
    if torch.compiler.is_compiling() or type(offsets) is not Tensor:
        return
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0:
        raise RuntimeError(f"offsets: offsets[0] has to be 0, where the first bag starts, got {first}")
    if last > count:
        raise RuntimeError(f"offsets: offsets[-1] can not be greater than input's length({count}), got {last}")


def _largest(rows: Tensor, bag: Tensor, bags: int) -> Tensor:
    """(bags, C): in each column the first NaN or else the first largest element of the bag; +0 without any."""
    positions, columns = rows.shape
    with torch.no_grad():
        where = bag[:, None].expand(positions, columns)
        keys = _order_keys(rows.detach())
        least = torch.iinfo(keys.dtype).min
        best = keys.new_full((bags + 1, columns), least).scatter_reduce(0, where, keys, "amax")
        places = torch.arange(positions, device=rows.device)[:, None].expand(positions, columns)
        candidates = torch.where(keys == best.gather(0, where), places, positions)
        at = candidates.new_full((bags + 1, columns), positions).scatter_reduce(0, where, candidates, "amin")[:bags]
    # The row of zeros behind the others is what an empty bag takes.
    return gather(torch.cat([rows, rows.new_zeros(1, columns)]), 0, at)


def _order_keys(x: Tensor) -> Tensor:
    """Integers in the order of x; zeros are equal, NaN is above all."""
    wide = x if x.dtype == torch.float64 else x.float()
    bits = wide.contiguous().view(torch.int64 if wide.dtype == torch.float64 else torch.int32)
    most = torch.iinfo(bits.dtype).max
    keys = torch.where(bits < 0, bits ^ most, bits)
    keys = torch.where(keys == -1, 0, keys)
    return torch.where(wide.isnan(), most, keys)
