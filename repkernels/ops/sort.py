"""Sorting, stable always (SPEC.md, "Sorting"): NaN is the largest, -0 equals +0, of equal elements the first is first.

Floating numbers are sorted as integers in their order, which every device does exactly. Gradients go back to where the
values came from, each to a place of its own.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.index_add import gather
from repkernels.ops.operation import operation

_Pair = tuple[Tensor, Tensor]
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_LOW = 2**32 - 1


def order_keys(x: Tensor) -> Tensor:
    """Integers in the order of x: equal for -0 and +0, and for all NaN, which are above everything."""
    if not x.is_floating_point():
        return x.to(torch.uint8) if x.dtype == torch.bool else x
    bits = x.view(_BITS[x.element_size()])
    most = torch.iinfo(bits.dtype).max
    infinity = int(torch.full((), float("inf"), dtype=x.dtype, device="cpu").view(bits.dtype))
    magnitude = bits & most
    keys = torch.where(bits < 0, ~magnitude + 1, magnitude)
    return keys.masked_fill_(magnitude > infinity, most)


def _run(x: Tensor, dim: int, descending: bool) -> _Pair:
    keys = order_keys(x)
    # ~ reverses the order of integers, and leaves equal ones to stability.
    indices = torch.sort(~keys if descending else keys, dim=dim, stable=True)[1].contiguous()
    return x.gather(dim, indices), indices


def _fake(x: Tensor, dim: int, descending: bool) -> _Pair:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int64)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Pair) -> None:
    x, ctx.dim, _ = inputs
    ctx.size = x.shape[ctx.dim]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
    return _place(grad, *ctx.saved_tensors, ctx.dim, ctx.size), None, None


def _vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, dim: int, descending: bool) -> tuple[_Pair, tuple[int, int]]:
    return _sort(x.movedim(in_dims[0], 0), dim + 1, descending), (0, 0)


def _run_topk(x: Tensor, k: int, dim: int, largest: bool) -> _Pair:
    size = x.shape[dim]
    if x.element_size() > 4 or size > _LOW:
        values, indices = _run(x, dim, largest)
        return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()
    # The element's key above its place: no two are equal, so any algorithm finds the same ones in the same order.
    place = torch.arange(size, device=x.device)
    place = (_LOW - place if largest else place).view(-1, *[1] * (x.ndim - dim - 1))
    keys = order_keys(x).long() << 32 | place
    place = torch.topk(keys, k, dim, largest, sorted=True)[0].contiguous() & _LOW
    indices = _LOW - place if largest else place
    return x.gather(dim, indices), indices


def _fake_topk(x: Tensor, k: int, dim: int, largest: bool) -> _Pair:
    shape = [*x.shape[:dim], k, *x.shape[dim + 1 :]]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _setup_topk(ctx: Any, inputs: tuple[Any, ...], output: _Pair) -> None:
    x, _, ctx.dim, _ = inputs
    ctx.size = x.shape[ctx.dim]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward_topk(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    return _place(grad, *ctx.saved_tensors, ctx.dim, ctx.size), None, None, None


def _vmap_topk(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, k: int, dim: int, largest: bool
) -> tuple[_Pair, tuple[int, int]]:
    return _topk(x.movedim(in_dims[0], 0), k, dim + 1, largest), (0, 0)


def _run_place(g: Tensor, index: Tensor, dim: int, size: int) -> Tensor:
    return g.new_zeros([*g.shape[:dim], size, *g.shape[dim + 1 :]]).scatter_(dim, index, g)


def _fake_place(g: Tensor, index: Tensor, dim: int, size: int) -> Tensor:
    return g.new_empty([*g.shape[:dim], size, *g.shape[dim + 1 :]])


def _setup_place(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, index, ctx.dim, _ = inputs
    ctx.save_for_backward(index)


def _backward_place(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return gather(grad, ctx.dim, *ctx.saved_tensors), None, None, None


def _vmap_place(
    info: Any, in_dims: tuple[Any, ...], g: Tensor, index: Tensor, dim: int, size: int
) -> tuple[Tensor, int]:
    g, index = (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip((g, index), in_dims, strict=False)
    )
    return _place(g, index, dim + 1, size), 0


_sort = operation("sort", _run, _fake, _setup_context, _backward, _vmap)
_topk = operation("topk", _run_topk, _fake_topk, _setup_topk, _backward_topk, _vmap_topk)
_place = operation("place_along", _run_place, _fake_place, _setup_place, _backward_place, _vmap_place)


def sort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Any:
    """input sorted along `dim`: the named tuple (values, indices), torch.sort's signature.

    input: fp32, bf16, fp16, fp64, integers or bool, any strides; results contiguous, indices int64. NaN is larger than
    everything; -0 and +0 are equal. Of equal elements the one with the lower index comes first, ascending, descending,
    and with stable=False too. Bits: SPEC.md, "Sorting". The gradient of a value goes to the element it came from.
    Differentiable any number of times. Raises IndexError for an axis out of range, NotImplementedError for other
    dtypes.
    """
    values, indices = _both(input, dim, descending)
    return torch.return_types.sort((values, indices))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    """The indices of `repkernels.sort`, torch.argsort's signature."""
    return _both(input.detach() if isinstance(input, Tensor) else input, dim, descending)[1]


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The first k of input sorted descending (largest=False: ascending) along `dim`: the named tuple (values, indices).

    torch.topk's signature. Of equal elements those with the lowest indices are taken, in this order; sorted=False
    gives the same. Dtypes (but bool), results and gradients are those of `repkernels.sort`.
    Raises RuntimeError for k out of range, IndexError for an axis out of range, NotImplementedError for other dtypes.
    """
    checks.operand("input", input, (*checks.FLOATS, *reduce.INTEGERS[1:]))
    dim = reduce.axis(input.ndim, dim)
    size = input.shape[dim] if input.ndim else 1
    # The result of a 0-d input is 0-d: torch's, for k = 0, is uninitialised memory.
    if not (0 if input.ndim else 1) <= k <= size:
        raise RuntimeError(f"k: selected index k out of range: {k} elements of {size} along dim {dim}")
    if input.ndim == 0:
        values, indices = _topk(input.reshape(1), k, 0, largest)
        values, indices = values.view(()), indices.view(())
    else:
        values, indices = _topk(input, k, dim, largest)
    return torch.return_types.topk((values, indices))


def _both(input: Tensor, dim: int, descending: bool) -> _Pair:
    checks.operand("input", input, (*checks.FLOATS, *reduce.INTEGERS))
    dim = reduce.axis(input.ndim, dim)
    if input.ndim == 0:
        values, indices = _sort(input.reshape(1), 0, descending)
        return values.view(()), indices.view(())
    pair: _Pair = _sort(input, dim, descending)
    return pair
