"""Sums, extrema, sorting and sums by index, below autograd."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.ops.grouped_sum import NOTHING, _grouped_sum
from repkernels.reproducible import library

WHY = "torch takes the terms, or equal elements, in another order on each device"
Dim = int | Sequence[int] | None


def _dims(dim: Dim) -> Dim:
    return None if isinstance(dim, (list, tuple)) and not dim else dim


def _sum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return library.sum(input, _dims(dim), keepdim, dtype=dtype)


def _mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return library.mean(input, _dims(dim), keepdim, dtype=dtype)


def _spread(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The three overloads of var, std and their pairs with the mean."""

    def whole(input: Tensor, unbiased: bool = True) -> Any:
        return function(input, None, correction=float(unbiased))

    def of_dim(input: Tensor, dim: Dim, unbiased: bool = True, keepdim: bool = False) -> Any:
        return function(input, _dims(dim), keepdim=keepdim, correction=float(unbiased))

    def corrected(input: Tensor, dim: Dim = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        return function(input, _dims(dim), keepdim=keepdim, correction=1.0 if correction is None else correction)

    name = function.__name__
    return {name: whole, f"{name}.dim": of_dim, f"{name}.correction": corrected}


def _norm(input: Tensor, p: Any = 2, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return library.norm(input, 2 if p is None else p, _dims(dim), keepdim, dtype=dtype)


def _amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return library.amax(input, dim, keepdim)


def _amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return library.amin(input, dim, keepdim)


def _aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = () if dim is None else dim
    return library.amin(input, dims, keepdim), library.amax(input, dims, keepdim)


def _sort(input: Tensor, *args: Any, stable: bool | None = None, **kwargs: Any) -> Any:
    return tuple(library.sort(input, *args, **kwargs))


def _topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if input.dtype == torch.bool:
        raise NotImplementedError("topk of bool is not supported")
    return tuple(library.topk(input, k, dim, largest, sorted))


def _argsort(input: Tensor, *args: Any, stable: bool | None = None, **kwargs: Any) -> Tensor:
    return library.argsort(input, *args, **kwargs)


def _kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = library.sort(input, dim)
    place = torch.tensor([k - 1], device=input.device)
    chosen = [x.index_select(dim, place) if input.ndim else x for x in (values, indices)]
    return tuple(x if keepdim or not input.ndim else x.squeeze(dim) for x in chosen)


def _prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Halved as a SUM of at most 1024 terms is, with products: x[:h] * x[h:], padded with ones."""
    if not input.is_floating_point() or input.dtype == torch.float64:
        raise NotImplementedError("prod of fp64 is not supported")
    x = input.to(dtype or input.dtype)
    result, x = x.dtype, x.float().reshape(-1) if dim is None else x.float().movedim(dim, -1)
    size = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = torch.nn.functional.pad(x, (0, size - x.shape[-1]), value=1.0)
    while size > 1:
        size //= 2
        x = x[..., :size] * x[..., size:]
    x = x.squeeze(-1).to(result)
    if keepdim and dim is not None:
        return x.unsqueeze(dim)
    return x


def _cumsum(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return library.cumsum(input, dim, dtype=dtype)


def _embedding_gradient(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    rows = grad_output.reshape(-1, grad_output.shape[-1])
    skip = NOTHING if padding_idx < 0 else padding_idx
    return _grouped_sum(rows, indices.reshape(-1), num_weights, skip, scale_grad_by_freq)


def _index_put(
    input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    """Summed by SUM in row-major order of the indices, or, where places repeat, the last value in that order."""
    if all(i is None or i.dtype in (torch.bool, torch.uint8) for i in indices) and not accumulate:
        return torch.index_put(input, list(indices), values)  # a mask names no place twice
    places = torch.arange(input.numel(), device=input.device).view(input.shape)[tuple(_slices(indices))]
    flat, source = input.reshape(-1), values.expand(places.shape).reshape(-1).to(input.dtype)
    places = places.reshape(-1)
    if accumulate:
        if not input.is_floating_point():
            return torch.index_put(input, list(indices), values, True)
        return library.index_add(flat, 0, places, source).view(input.shape)
    return _last(flat, 0, places, source).view(input.shape)


def _slices(indices: Sequence[Tensor | None]) -> list[Any]:
    return [slice(None) if i is None else i for i in indices]


def _scatter(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    if index.ndim == 0 or index.shape[dim] <= 1:
        return torch.scatter(input, dim, index, src)
    return _last(input, dim, index, src)


def _last(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """scatter where of several elements sent to one place the last along `dim` wins: all of them write its value."""
    if not index.numel():
        return input.clone()
    src = src[tuple(slice(n) for n in index.shape)]
    keys, order = torch.sort(index, dim=dim, stable=True)
    across = keys.movedim(dim, -1).contiguous()
    ends = (torch.searchsorted(across, across, right=True) - 1).movedim(-1, dim)
    winners = src.gather(dim, order.gather(dim, ends))
    return torch.scatter(input, dim, keys, winners)


def _scatter_value(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return torch.scatter(input, dim, index, value)  # one value, whoever writes it


def _index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if input.ndim == 0:
        return torch.index_copy(input, dim, index, source)
    shape = [1] * input.ndim
    shape[dim] = -1
    return _last(input, dim, index.view(shape).expand(source.shape), source)


def _put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return _index_put(input.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate).view(input.shape)


def _scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if reduce in ("amax", "amin"):
        return torch.scatter_reduce(input, dim, index, src, reduce, include_self=include_self)
    if reduce not in ("sum", "add"):
        raise NotImplementedError(f"scatter_reduce by {reduce!r} is not supported")
    base = input if include_self else torch.scatter(input, dim, index, 0)
    return library.scatter_add(base, dim, index, src)


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return library.index_add(input, dim, index, source, alpha=alpha)


def _col2im(input: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    fold = getattr(functional, "fold", None)
    if fold is None:
        raise NotImplementedError("this library has no fold")
    return fold(input, output_size, kernel_size, dilation, padding, stride)


def _unfold_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """The gradient of Tensor.unfold: the SUM of an element's windows, in ascending order."""
    places = torch.arange(math.prod(input_sizes), device=grad.device).view(*input_sizes).unfold(dim, size, step)
    flat = _grouped_sum(grad.reshape(-1, 1), places.reshape(-1), math.prod(input_sizes), NOTHING, False)
    return flat.view(*input_sizes)


def _trace(input: Tensor) -> Tensor:
    return library.sum(input.diagonal())


def _histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts by bin floor(RN(RN(RN(x - min) * bins) / RN(max - min))), the last one's upper border within it."""
    x = input.reshape(-1)
    low, high = torch.tensor(min, dtype=x.dtype), torch.tensor(max, dtype=x.dtype)
    if min == max and x.numel():
        low, high = (t.cpu() for t in (library.amin(x), library.amax(x)))
    low, high = (low - 1, high + 1) if low == high else (low, high)
    x = x[(x >= low.item()) & (x <= high.item())]
    place = library.div((x - low.item()) * bins, (high - low).to(x.device)).floor().long().clamp(max=bins - 1)
    return torch.bincount(place, minlength=bins).to(input.dtype)


ATEN: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    **_spread(library.var),
    **_spread(library.std),
    **_spread(library.var_mean),
    **_spread(library.std_mean),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "prod": _prod,
    "amax": _amax,
    "amin": _amin,
    "aminmax": _aminmax,
    "max": library.max,
    "min": library.min,
    "argmax": library.argmax,
    "argmin": library.argmin,
    "logsumexp": library.logsumexp,
    "cumsum": _cumsum,
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
    "kthvalue": _kthvalue,
    "histc": _histc,
    "bincount": library.bincount,
    "embedding_dense_backward": _embedding_gradient,
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "_unsafe_index_put": _index_put,
    "index_add": _index_add,
    "index_copy": _index_copy,
    "put": _put,
    "scatter_add": library.scatter_add,
    "scatter_reduce": _scatter_reduce,
    "scatter.src": _scatter,
    "scatter.value": _scatter_value,
    "col2im": _col2im,
    "unfold_backward": _unfold_backward,
    "trace": _trace,
}
