"""Axes of reductions: what `dim` and `keepdim` mean, and a tensor as rows that are reduced and columns that stay.

Reduced axes are flattened row-major in logical order, whatever the strides or the order of `dim` (SPEC.md,
"Reductions"). Kernels see four axes (R1, R2, N1, N2): row r is (r // R2, r % R2), column n is (n // N2, n % N2).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks

Dim = int | Sequence[int] | None
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def axes(ndim: int, dim: Dim) -> list[int]:
    """`dim` as ascending axes of a tensor of `ndim` dimensions; None and () are all of them.

    Raises IndexError for an axis that is not there and RuntimeError for one that is given twice, with torch's texts.
    """
    if dim is None:
        return list(range(ndim))
    found = [axis(ndim, d) for d in (dim if isinstance(dim, Sequence) else [dim])]
    for d in found:
        if found.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return sorted(found) if found or ndim == 0 else list(range(ndim))


def axis(ndim: int, dim: int) -> int:
    """One axis, counted from the front; a 0-d tensor has the axes 0 and -1, which are left out of it."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim: expected an int or ints, got {type(dim).__name__}")
    size = max(ndim, 1)
    if not -size <= dim < size:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-size}, {size - 1}], but got {dim})")
    return dim % size


def inside(dims: Sequence[int], ndim: int) -> list[int]:
    """The axes that a tensor of `ndim` dimensions has: none of a 0-d one."""
    return [d for d in dims if d < ndim]


def kept_shape(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The sizes of the axes that stay."""
    return [size for d, size in enumerate(shape) if d not in dims]


def with_axes(y: Tensor, dims: Sequence[int]) -> Tensor:
    """`y`, from which `dims` (ascending) were taken, with axes of size 1 in their places."""
    for d in dims:
        y = y.unsqueeze(d)
    return y


def count(shape: Sequence[int], dims: Sequence[int]) -> int:
    """How many elements meet in one result."""
    n = 1
    for d in dims:
        n *= shape[d]
    return n


def operand(name: str, x: object, integers: bool = False) -> None:
    """`checks.operand` with integers and bool where a reduction has them."""
    checks.operand(name, x, (*checks.FLOATS, *INTEGERS) if integers else checks.FLOATS)


def four_axes(dims: Sequence[int], *tensors: Tensor) -> list[Tensor] | None:
    """Views (R1, R2, N1, N2) of tensors of one shape; None where their strides have more levels than two a side."""
    shape = tensors[0].shape
    reduced = _flattened(tensors, dims)
    kept = _flattened(tensors, [d for d in range(len(shape)) if d not in dims])
    if len(reduced) > 2 or len(kept) > 2:
        return None
    levels = [*_padded(reduced), *_padded(kept)]
    sizes = [size for size, _ in levels]
    return [x.as_strided(sizes, [strides[i] for _, strides in levels]) for i, x in enumerate(tensors)]


def columns(x: Tensor, dims: Sequence[int]) -> Tensor:
    """x as (R1, R2, N1, N2); a copy (1, R, 1, N) where its strides have more levels than two a side."""
    views = four_axes(dims, x)
    if views is not None:
        return views[0]
    kept = [d for d in range(x.ndim) if d not in dims]
    copy = x.permute(*dims, *kept).contiguous()
    return copy.view(1, count(x.shape, dims), 1, count(x.shape, kept))


_Level = tuple[int, tuple[int, ...]]


def _flattened(tensors: Iterable[Tensor], dims: Sequence[int]) -> list[_Level]:
    """(size, each tensor's stride) of the fewest axes that stand for `dims` of all tensors, outermost first."""
    strides = list(zip(*(x.stride() for x in tensors), strict=True))
    sizes = next(iter(tensors)).shape
    levels: list[_Level] = []
    for d in dims:
        if sizes[d] == 1:
            continue
        if levels and all(outer == sizes[d] * inner for outer, inner in zip(levels[-1][1], strides[d], strict=True)):
            levels[-1] = (levels[-1][0] * sizes[d], strides[d])
        else:
            levels.append((sizes[d], strides[d]))
    return levels


def _padded(levels: list[_Level]) -> list[_Level]:
    """Two levels; axes of size 1 have the stride 0."""
    return [(1, (0,) * 8)] * (2 - len(levels)) + levels


def moved(call: Callable[..., Any]) -> Callable[..., Any]:
    """vmap's rule for an operation `call()(x, dims, ...)` on one tensor: the batch is one more axis that stays."""

    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, dims: Any, *rest: Any) -> tuple[Any, Any]:
        shifted = [d + 1 for d in dims] if isinstance(dims, list | tuple) else dims + 1
        result = call()(x.movedim(in_dims[0], 0), shifted, *rest)
        return result, (0,) * len(result) if isinstance(result, tuple) else 0

    return vmap


def single_precision(x: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """`dtype`, or fp32 where autocast is on, x is of a half type and no dtype is asked for."""
    if dtype is None and x.dtype in (torch.bfloat16, torch.float16) and checks.autocast(x.device.type) is not None:
        return torch.float32
    return dtype
