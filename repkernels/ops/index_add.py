"""Sums into chosen places (SPEC.md, "Grouped sums"): base + alpha * the SUM of a place's terms in ascending position.

`index_select` and `gather`, whose gradients are such sums, stand beside them.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.backend import backend
from repkernels.ops.elementwise import elementwise, in_format
from repkernels.ops.grouped_sum import INDICES, check_range, groups, take_rows
from repkernels.ops.operation import operation


def _run(base: Tensor, x: Tensor, index: Tensor, alpha: float) -> Tensor:
    check_range("index", index, base.shape[0])
    kernels, alpha = backend("grouped_sum", x.device.type), in_format(alpha, x.dtype)
    return kernels.grouped_sum(x, *groups(index, base.shape[0]), base, alpha, False, base.dtype)


def _fake(base: Tensor, x: Tensor, index: Tensor, alpha: float) -> Tensor:
    return base.new_empty(base.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, index, ctx.alpha = inputs
    ctx.save_for_backward(index)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    rows = None
    if ctx.needs_input_grad[1]:
        (index,) = ctx.saved_tensors
        rows = take_rows(grad, index, "index")
        if ctx.alpha != 1:
            rows = elementwise("addcmul_gradient", rows, rows.new_ones(1), s=ctx.alpha)
    return grad, rows, None, None


def _vmap(
    info: Any, in_dims: tuple[Any, ...], base: Tensor, x: Tensor, index: Tensor, alpha: float
) -> tuple[Tensor, int]:
    size = info.batch_size
    base, x = (
        t.unsqueeze(1).expand(t.shape[0], size, *t.shape[1:]) if d is None else t.movedim(d, 1)
        for t, d in zip((base, x), in_dims[:2], strict=True)
    )
    if in_dims[2] is None:
        rows = _index_add(base.reshape(base.shape[0], -1), x.reshape(x.shape[0], -1), index, alpha)
        return rows.view(base.shape), 1
    samples = zip(base.unbind(1), x.unbind(1), index.movedim(in_dims[2], 0).unbind(), strict=True)
    return torch.stack([_index_add(*sample, alpha) for sample in samples]), 0


def places(index: Tensor, dim: int, sizes: list[int]) -> Tensor:
    """(P,): where index (row-major) points to in a contiguous tensor of `sizes`, along `dim`; elsewhere to itself."""
    total, stride = torch.zeros((), dtype=torch.int64, device=index.device), 1
    for d in reversed(range(len(sizes))):
        along = index.long() if d == dim else torch.arange(index.shape[d], device=index.device)
        total = total + (along if d == dim else along.view(-1, *[1] * (index.ndim - d - 1))) * stride
        stride *= sizes[d]
    return total.expand(index.shape).reshape(-1)


def _scattered(src: Tensor, index: Tensor, dim: int, sizes: list[int], base: Tensor | None) -> Tensor:
    check_range("index", index, sizes[dim], RuntimeError)
    count = 1
    for size in sizes:
        count *= size
    order, starts = groups(places(index, dim, sizes), count)
    flat = None if base is None else base.reshape(-1, 1)
    kernels = backend("grouped_sum", src.device.type)
    return kernels.grouped_sum(src.reshape(-1, 1), order, starts, flat, 1.0, False, src.dtype).view(sizes)


def _run_scatter(base: Tensor, src: Tensor, index: Tensor, dim: int) -> Tensor:
    return _scattered(src, index, dim, list(base.shape), base)


def _fake_scatter(base: Tensor, src: Tensor, index: Tensor, dim: int) -> Tensor:
    return base.new_empty(base.shape)


def _setup_scatter(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, index, ctx.dim = inputs
    ctx.save_for_backward(index)


def _backward_scatter(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    at = _gather(grad, *ctx.saved_tensors, ctx.dim) if ctx.needs_input_grad[1] else None
    return grad, at, None, None


def _vmap_scatter(
    info: Any, in_dims: tuple[Any, ...], base: Tensor, src: Tensor, index: Tensor, dim: int
) -> tuple[Tensor, int]:
    tensors = zip((base, src, index), in_dims, strict=False)
    return _scatter_add(*(_first(info, t, d) for t, d in tensors), dim + 1), 0


def _run_sum(src: Tensor, index: Tensor, dim: int, sizes: list[int]) -> Tensor:
    return _scattered(src, index, dim, list(sizes), None)


def _fake_sum(src: Tensor, index: Tensor, dim: int, sizes: list[int]) -> Tensor:
    return src.new_empty(sizes)


def _setup_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, index, ctx.dim, _ = inputs
    ctx.save_for_backward(index)


def _backward_sum(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _gather(grad, *ctx.saved_tensors, ctx.dim), None, None, None


def _vmap_sum(
    info: Any, in_dims: tuple[Any, ...], src: Tensor, index: Tensor, dim: int, sizes: list[int]
) -> tuple[Tensor, int]:
    src, index = (_first(info, t, d) for t, d in zip((src, index), in_dims, strict=False))
    return _scatter_sum(src, index, dim + 1, [info.batch_size, *sizes]), 0


def _run_gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    check_range("index", index, x.shape[dim], RuntimeError)
    return x.gather(dim, index.long())


def _fake_gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return x.new_empty(index.shape)


def _setup_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index, ctx.dim = inputs
    ctx.sizes = x.shape
    ctx.save_for_backward(index)


def _backward_gather(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _scatter_sum(grad, *ctx.saved_tensors, ctx.dim, list(ctx.sizes)), None, None


def _vmap_gather(info: Any, in_dims: tuple[Any, ...], x: Tensor, index: Tensor, dim: int) -> tuple[Tensor, int]:
    x, index = (_first(info, t, d) for t, d in zip((x, index), in_dims, strict=False))
    return _gather(x, index, dim + 1), 0


def _first(info: Any, x: Tensor, dim: int | None) -> Tensor:
    return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


_index_add = operation("index_add", _run, _fake, _setup_context, _backward, _vmap)
_scatter_add = operation("scatter_add", _run_scatter, _fake_scatter, _setup_scatter, _backward_scatter, _vmap_scatter)
_scatter_sum = operation("scatter_sum", _run_sum, _fake_sum, _setup_sum, _backward_sum, _vmap_sum)
_gather = operation("gather", _run_gather, _fake_gather, _setup_gather, _backward_gather, _vmap_gather)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """input + alpha * the slices of `source` whose index is this one, along `dim`: torch.index_add's signature.

    input, source: fp32, bf16, fp16 or fp64, any strides, of one dtype and, but for `dim`, one shape; integers and bool
    are torch's own. index: (P,), int64 or int32. Result: contiguous, input's shape.
    Bits: SPEC.md, "Grouped sums": b + alpha * SUM of the terms in ascending position, half types rounded once; where
    there is no term, b. Differentiable any number of times.
    Raises IndexError for an index (on a GPU a device-side assertion) or axis out of range, RuntimeError for shapes,
    dtypes and devices that do not fit, NotImplementedError for other dtypes.
    """
    _check_pair("source", input, source, index)
    dim = reduce.axis(input.ndim, dim)
    if index.ndim > 1:
        raise IndexError(f"index: expected one dimension, got shape {tuple(index.shape)}")
    shape = tuple(source.shape)
    rest = [d for d in range(input.ndim) if d != dim]
    if len(shape) != input.ndim or any(shape[d] != input.shape[d] for d in rest):
        raise RuntimeError(
            f"source: shape {shape} must match input's {tuple(input.shape)}, but for its size along dim {dim}"
        )
    if index.numel() != (shape[dim] if shape else 1):
        raise RuntimeError(f"index: {index.numel()} indices for source of shape {shape}; one for each along dim {dim}")
    if not input.is_floating_point():
        return torch.index_add(input, dim, index, source, alpha=alpha)  # exact in any order
    if input.ndim == 0:
        return index_add(input[None], 0, index.reshape(1), source[None], alpha=alpha)[0]
    base, terms = input.movedim(dim, 0), source.movedim(dim, 0)
    columns = _columns(input, dim)
    rows = base.reshape(base.shape[0], columns), terms.reshape(terms.shape[0], columns)
    alpha = in_format(checks.number("alpha", alpha), input.dtype)
    added = _index_add(*rows, index.reshape(-1), alpha)
    return added.view(base.shape).movedim(0, dim).contiguous()


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """input + the elements of `src` that `index` sends to each place along `dim`: torch.scatter_add's signature.

    index: int64 or int32, as many dimensions as input and src, nowhere larger than src, nor than input but along
    `dim`. Dtypes, result, bits, gradients and errors are those of `repkernels.index_add`, but that an index out of
    range is a RuntimeError, as in torch; positions are row-major. The gradient of what index leaves out of src is 0.
    """
    for name, x in (("input", input), ("src", src)):
        checks.operand(name, x, (*checks.FLOATS, *reduce.INTEGERS))
    if checks.autocast(input.device.type) is not None and input.is_floating_point() and src.is_floating_point():
        dtype = torch.promote_types(input.dtype, src.dtype)
        input, src = input.to(dtype), src.to(dtype)
    _check_pair("src", input, src, index)
    dim = reduce.axis(input.ndim, dim)
    shapes = input.ndim, src.ndim, index.ndim
    if 0 in shapes and max(shapes) < 2:  # a number is a vector of one
        shape, index, src = input.shape, index.reshape(-1), src.reshape(-1)
        return scatter_add(input.reshape(-1), 0, index, src).view(shape)
    if index.numel() == 0:
        return input.clone(memory_format=torch.contiguous_format)
    fits = index.ndim == input.ndim == src.ndim and all(
        i <= s and (i <= n or d == dim)
        for d, (i, n, s) in enumerate(zip(index.shape, input.shape, src.shape, strict=True))
    )
    if not fits:
        raise RuntimeError(
            f"index: shape {tuple(index.shape)} must have the dimensions of input {tuple(input.shape)} and src "
            f"{tuple(src.shape)}, be no larger than src, and no larger than input apart from dim {dim}"
        )
    if not input.is_floating_point():
        return torch.scatter_add(input, dim, index, src)  # exact in any order
    return _scatter_add(input, src[tuple(slice(n) for n in index.shape)], index, dim)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of `input` at `index` along `dim`, torch.index_select's signature.

    The gradient is the SUM of each slice's positions (SPEC.md, "Grouped sums"); dtypes and errors are those of
    `repkernels.index_add`. Result: contiguous.
    """
    checks.operand("input", input, (*checks.FLOATS, *reduce.INTEGERS))
    _check_index(input, index)
    dim = reduce.axis(input.ndim, dim)
    if index.ndim > 1:
        raise IndexError(f"index: expected one dimension, got shape {tuple(index.shape)}")
    if not input.is_floating_point():
        return torch.index_select(input, dim, index)
    if input.ndim == 0:
        return take_rows(input.reshape(1, 1), index.reshape(-1), "index").reshape(())
    rows = input.movedim(dim, 0)
    taken = take_rows(rows.reshape(rows.shape[0], _columns(input, dim)), index.reshape(-1), "index")
    return taken.view(taken.shape[0], *rows.shape[1:]).movedim(0, dim).contiguous()


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """input at `index` along `dim`, torch.gather's signature.

    index: int64 or int32, as many dimensions as input, no larger apart from `dim`. The gradient is the SUM of each
    element's positions, row-major (SPEC.md, "Grouped sums"). Dtypes and errors are those of `repkernels.scatter_add`.
    """
    checks.operand("input", input, (*checks.FLOATS, *reduce.INTEGERS))
    _check_index(input, index)
    dim = reduce.axis(input.ndim, dim)
    if input.ndim + index.ndim < 2:  # a number is a vector of one
        return gather(input.reshape(-1), 0, index.reshape(-1)).view(index.shape)
    fits = index.numel() == 0 or (
        index.ndim == input.ndim and all(index.shape[d] <= input.shape[d] for d in range(input.ndim) if d != dim)
    )
    if not fits:
        raise RuntimeError(
            f"index: shape {tuple(index.shape)} must have the dimensions of input {tuple(input.shape)} and be no "
            f"larger apart from dim {dim}"
        )
    if not input.is_floating_point() or index.numel() == 0:
        return torch.gather(input, dim, index.long())
    return _gather(input, index, dim)


def _columns(x: Tensor, dim: int) -> int:
    """How many elements a slice of x at one index of `dim` has."""
    return reduce.count(x.shape, [d for d in range(x.ndim) if d != dim])


def _check_pair(name: str, input: Tensor, source: Tensor, index: Tensor) -> None:
    dtypes = (*checks.FLOATS, *reduce.INTEGERS)
    checks.operand("input", input, dtypes)
    checks.operand(name, source, dtypes)
    checks.same(name, source, "input", input)
    _check_index(input, index)


def _check_index(input: Tensor, index: Tensor) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"index: expected a Tensor, got {type(index).__name__}")
    if index.dtype not in INDICES:
        raise RuntimeError(f"index: expected int64 or int32, got {index.dtype}")
    if index.device != input.device:
        raise RuntimeError(f"index: on {index.device} but input is on {input.device}; move one of them")
