"""Largest and smallest elements (SPEC.md, "Extrema"): NaN wins, -0 is below +0, a position is that of the first."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.backend import backend
from repkernels.ops.convert import converted
from repkernels.ops.operation import operation
from repkernels.ops.reduce import Dim
from repkernels.ops.reduction_gradient import reduction_gradient
from repkernels.ops.sum import broadcast_to


def _run(x: Tensor, dims: list[int], largest: bool) -> Tensor:
    shape = reduce.kept_shape(x.shape, dims)
    if not x.numel():
        return x.new_empty(shape)
    return backend("extrema", x.device.type).extreme(reduce.columns(x, dims), largest).view(shape)


def _fake(x: Tensor, dims: list[int], largest: bool) -> Tensor:
    return x.new_empty(reduce.kept_shape(x.shape, dims))


def _setup_context(ctx: Any, inputs: tuple[Tensor, list[int], bool], output: Tensor) -> None:
    x, ctx.dims, _ = inputs
    ctx.save_for_backward(x, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    x, result = ctx.saved_tensors
    return reduction_gradient(x, grad, result, None, ctx.dims, "tie", 0.0), None, None


def _run_position(x: Tensor, dims: list[int], largest: bool) -> Tensor:
    shape = reduce.kept_shape(x.shape, dims)
    if not x.numel():
        return x.new_empty(shape, dtype=torch.int64)
    return backend("extrema", x.device.type).position(reduce.columns(x, dims), largest).view(shape)


def _fake_position(x: Tensor, dims: list[int], largest: bool) -> Tensor:
    return x.new_empty(reduce.kept_shape(x.shape, dims), dtype=torch.int64)


def _setup_position(ctx: Any, inputs: tuple[Tensor, list[int], bool], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)


def _no_gradient(ctx: Any, grad: Any) -> tuple[None, None, None]:
    return None, None, None


def _run_at(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.gather(dim, index.unsqueeze(dim)).squeeze(dim)


def _fake_at(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.new_empty(index.shape)


def _setup_at(ctx: Any, inputs: tuple[Tensor, int, Tensor], output: Tensor) -> None:
    x, ctx.dim, index = inputs
    ctx.size = x.shape[ctx.dim]
    ctx.save_for_backward(index)


def _backward_at(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _placed(grad, ctx.dim, *ctx.saved_tensors, ctx.size), None, None


def _run_placed(g: Tensor, dim: int, index: Tensor, size: int) -> Tensor:
    shape = [*g.shape[:dim], size, *g.shape[dim:]]
    return g.new_zeros(shape).scatter_(dim, index.unsqueeze(dim), g.unsqueeze(dim))


def _fake_placed(g: Tensor, dim: int, index: Tensor, size: int) -> Tensor:
    return g.new_empty([*g.shape[:dim], size, *g.shape[dim:]])


def _setup_placed(ctx: Any, inputs: tuple[Tensor, int, Tensor, int], output: Tensor) -> None:
    _, ctx.dim, index, _ = inputs
    ctx.save_for_backward(index)


def _backward_placed(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _at(grad, ctx.dim, *ctx.saved_tensors), None, None, None


def _vmap_at(info: Any, in_dims: tuple[Any, ...], x: Tensor, dim: int, index: Tensor) -> tuple[Tensor, int]:
    return _at(_batched(info, x, in_dims[0]), dim + 1, _batched(info, index, in_dims[2])), 0


def _vmap_placed(
    info: Any, in_dims: tuple[Any, ...], g: Tensor, dim: int, index: Tensor, size: int
) -> tuple[Tensor, int]:
    return _placed(_batched(info, g, in_dims[0]), dim + 1, _batched(info, index, in_dims[2]), size), 0


def _batched(info: Any, x: Tensor, dim: int | None) -> Tensor:
    return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


def _run_pair(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    return backend("extrema", a.device.type).maximum(a.contiguous(), b.contiguous(), largest)


def _fake_pair(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    return a.new_empty(a.shape)


def _setup_pair(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    a, b, ctx.largest = inputs
    ctx.save_for_backward(a, b)


def _backward_pair(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    a, b = ctx.saved_tensors
    first = _pair_gradient(grad, a, b, ctx.largest) if ctx.needs_input_grad[0] else None
    second = _pair_gradient(grad, b, a, ctx.largest) if ctx.needs_input_grad[1] else None
    return first, second, None


def _run_pair_gradient(g: Tensor, a: Tensor, b: Tensor, largest: bool) -> Tensor:
    return backend("extrema", a.device.type).maximum_gradient(*(t.contiguous() for t in (g, a, b)), largest)


def _fake_pair_gradient(g: Tensor, a: Tensor, b: Tensor, largest: bool) -> Tensor:
    return g.new_empty(g.shape)


def _setup_pair_gradient(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
    _, a, b, ctx.largest = inputs
    ctx.save_for_backward(a, b)


def _backward_pair_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _pair_gradient(grad, *ctx.saved_tensors, ctx.largest), None, None, None


def _vmap_pair(info: Any, in_dims: tuple[Any, ...], a: Tensor, b: Tensor, largest: bool) -> tuple[Tensor, int]:
    return _pair(_batched(info, a, in_dims[0]), _batched(info, b, in_dims[1]), largest), 0


def _vmap_pair_gradient(
    info: Any, in_dims: tuple[Any, ...], g: Tensor, a: Tensor, b: Tensor, largest: bool
) -> tuple[Tensor, int]:
    return _pair_gradient(*(_batched(info, t, d) for t, d in zip((g, a, b), in_dims, strict=False)), largest), 0


_extreme: Callable[..., Any] = operation(
    "extreme", _run, _fake, _setup_context, _backward, reduce.moved(lambda: _extreme)
)
_position: Callable[..., Any] = operation(
    "position", _run_position, _fake_position, _setup_position, _no_gradient, reduce.moved(lambda: _position)
)
_at = operation("at_position", _run_at, _fake_at, _setup_at, _backward_at, _vmap_at)
_placed = operation("placed", _run_placed, _fake_placed, _setup_placed, _backward_placed, _vmap_placed)
_pair = operation("maximum", _run_pair, _fake_pair, _setup_pair, _backward_pair, _vmap_pair)
_pair_gradient = operation(
    "maximum_gradient", _run_pair_gradient, _fake_pair_gradient, _setup_pair_gradient, _backward_pair_gradient,
    _vmap_pair_gradient,
)  # fmt: skip


def amax(input: Tensor, dim: Dim = (), keepdim: bool = False) -> Tensor:
    """The largest element over `dim` (an int, ints, or all), torch.amax's signature.

    input: floating or integer, any strides. NaN if there is one; -0 is below +0. The gradient is shared by the ties:
    div_rn(g, their number), zeros of both signs being ties, and NaN of a NaN. Bits: SPEC.md, "Extrema".
    Differentiable twice. Raises IndexError for an axis out of range or without elements, RuntimeError for one given
    twice and for no elements at all, NotImplementedError for other dtypes.
    """
    return _extremum("amax", input, dim, keepdim, True)


def amin(input: Tensor, dim: Dim = (), keepdim: bool = False) -> Tensor:
    """The smallest element, as `repkernels.amax`; NaN if there is one."""
    return _extremum("amin", input, dim, keepdim, False)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first NaN along `dim` or else of the first largest element, int64, torch.argmax's signature.

    dim None: the index in the flattened input. -0 and +0 are equal. Raises IndexError for an axis out of range or
    without elements, RuntimeError for bool, NotImplementedError for other dtypes.
    """
    return _argument("argmax", input, dim, keepdim, True)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first NaN or else of the first smallest element, as `repkernels.argmax`."""
    return _argument("argmin", input, dim, keepdim, False)


@overload
def max(input: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, dim: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
    """torch.max's three forms.

    max(input): `repkernels.amax` of all elements. max(input, dim, keepdim): the named tuple (values, indices) with
    `repkernels.argmax`'s indices and the elements there, to which the gradient goes. max(input, other):
    `repkernels.maximum`.
    """
    return _forms("max", input, dim, keepdim, other, True)


@overload
def min(input: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, dim: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
    """torch.min's three forms, as `repkernels.max`."""
    return _forms("min", input, dim, keepdim, other, False)


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of each pair of elements, torch.maximum's signature; NaN if either is one, -0 below +0.

    Shapes broadcast, dtypes promote as in torch; result contiguous. Gradient: that of the result to the larger one,
    half to each of equal ones, all to both where a NaN is. Raises RuntimeError for shapes that do not fit, TypeError
    and NotImplementedError for what is no tensor or has another dtype.
    """
    return _binary(input, other, True)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of each pair of elements, as `repkernels.maximum`."""
    return _binary(input, other, False)


def _extremum(name: str, x: Tensor, dim: Dim, keepdim: bool, largest: bool) -> Tensor:
    reduce.operand("input", x, integers=True)
    dims = reduce.inside(reduce.axes(x.ndim, dim), x.ndim)
    if x.numel() == 0 and (dim is None or dim == () or dim == []):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with "
            "the 'dim' argument."
        )
    _check_lengths(name, x, dims)
    if not x.is_floating_point():
        return (torch.amax if largest else torch.amin)(x, dims, keepdim)
    y = _extreme(x, dims, largest)
    return reduce.with_axes(y, dims) if keepdim else y


def _check_lengths(name: str, x: Tensor, dims: list[int]) -> None:
    for d in dims:
        if x.shape[d] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")


def _argument(name: str, x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    reduce.operand("input", x, integers=True)
    if x.dtype == torch.bool:
        raise RuntimeError(f"{name}(): does not support bool input")
    if dim is None and x.numel() == 0:
        raise IndexError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
    dims = reduce.inside(list(range(x.ndim)) if dim is None else [reduce.axis(x.ndim, dim)], x.ndim)
    _check_lengths(name, x, dims)
    if not x.is_floating_point():
        return (torch.argmax if largest else torch.argmin)(x, dim, keepdim)  # the first, as torch documents
    y = _position(x, dims, largest)
    return reduce.with_axes(y, dims) if keepdim else y


def _forms(name: str, x: Tensor, dim: Any, keepdim: bool, other: Tensor | None, largest: bool) -> Any:
    if isinstance(dim, Tensor) or other is not None:
        return _binary(x, dim if other is None else other, largest)
    if dim is None:
        return _extremum(name, x, None, keepdim, largest)
    reduce.operand("input", x, integers=True)
    if not isinstance(dim, int):
        raise TypeError(f"dim: {name}() takes one axis as an int, got {type(dim).__name__}; use a{name} for several")
    found = reduce.axis(x.ndim, dim)
    dims = reduce.inside([found], x.ndim)
    _check_lengths(name, x, dims)
    if not x.is_floating_point():
        return (torch.max if largest else torch.min)(x, dim, keepdim)
    indices = _position(x, dims, largest)
    values = _at(x, found, indices) if dims else _extreme(x, dims, largest)
    if keepdim:
        values, indices = reduce.with_axes(values, dims), reduce.with_axes(indices, dims)
    return (torch.return_types.max if largest else torch.return_types.min)((values, indices))


def _binary(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    reduce.operand("input", a, integers=True)
    reduce.operand("other", b, integers=True)
    if a.device != b.device and a.ndim and b.ndim:
        raise RuntimeError(f"other: on {b.device} but input is on {a.device}; move one of them")
    dtype = _promoted(a, b)
    if not dtype.is_floating_point:
        return (torch.maximum if largest else torch.minimum)(a, b)
    a, b = converted(a, dtype), converted(b, dtype)
    checks.operand("input", a)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return _pair(broadcast_to(a, shape), broadcast_to(b, shape), largest)


def _promoted(a: Tensor, b: Tensor) -> torch.dtype:
    """torch.result_type, which torch.compile does not know: a scalar counts only if it alone is floating."""
    if (a.ndim == 0) != (b.ndim == 0):
        scalar, other = (a, b) if a.ndim == 0 else (b, a)
        if other.is_floating_point() or not scalar.is_floating_point():
            return other.dtype
    return torch.promote_types(a.dtype, b.dtype)
