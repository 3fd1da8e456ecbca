"""Max unpooling (SPEC.md, "Pooling"): elements put back to the places they came from, +0 elsewhere.

Of elements with one place the last in row-major order stays. Selections and integers, so it needs no kernel of its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import windows as arguments
from repkernels.ops.index_add import gather
from repkernels.ops.operation import operation
from repkernels.ops.windows import Sizes


def _run(x: Tensor, index: Tensor, size: int) -> Tensor:
    count = x.shape[2]
    # A maximum of integers has no order.
    winner = torch.full((*x.shape[:2], size), -1, dtype=torch.int64, device=x.device)
    order = torch.arange(count, device=x.device).expand(x.shape)
    winner.scatter_reduce_(2, index, order, "amax")
    if count == 0:
        return x.new_zeros(winner.shape)
    return x.gather(2, winner.clamp(min=0)).masked_fill_(winner < 0, 0)


def _fake(x: Tensor, index: Tensor, size: int) -> Tensor:
    return x.new_empty((*x.shape[:2], size))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (index,) = ctx.saved_tensors
    return gather(grad, 2, index), None, None


def _vmap(*args: Any) -> Any:
    return arguments.folded(_max_unpool, 2)(*args)


_max_unpool = operation("max_unpool", _run, _fake, _setup_context, _backward, _vmap)


def _unpooled(
    name: str, input: Tensor, dims: int, indices: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
    output_size: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    x, batched = arguments.operand(name, input, dims)
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64:
        given = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
        raise RuntimeError(f"indices: expected an int64 tensor, got {given}")
    if indices.shape != input.shape:
        raise RuntimeError(f"indices: expected shape {tuple(input.shape)}, that of input, got {tuple(indices.shape)}")
    if indices.device != input.device:
        raise RuntimeError(f"indices: on {indices.device} but input is on {input.device}; move one of them")
    size = _size(input, dims, kernel_size, stride, padding, output_size)
    places = arguments.volume(arguments.padded(size, 1))
    if any(n < 1 for n in size):
        raise RuntimeError(f"{name}: nothing is left of an output of {tuple(size)}")
    index = (indices if batched else indices[None]).flatten(2)
    _check(index, places)
    y = _max_unpool(x.flatten(2), index, places).unflatten(2, arguments.padded(size, 1))
    y = arguments.result(y, dims, batched)
    form = torch.channels_last if dims == 2 else torch.channels_last_3d
    return y.contiguous(memory_format=form) if batched and arguments.channels_last(input) else y


def _check(index: Tensor, places: int) -> None:
    """Raises for an index that is no place; on a GPU a device-side assertion, without waiting for it."""
    if index.is_meta or torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(index):
        return
    right = ((index >= 0) & (index < places)).all()
    message = f"indices: expected places of the output, 0 .. {places - 1}"
    if not index.is_cpu:
        torch._assert_async(right, message)
    elif not right:
        raise RuntimeError(message)


def _size(
    input: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, output_size: Any
) -> tuple[int, ...]:
    kernel = arguments.numbers("kernel_size", kernel_size, dims, 1)
    empty = stride is None or isinstance(stride, (list, tuple)) and not stride
    step = kernel if empty else arguments.numbers("stride", stride, dims, 1)
    pad = arguments.numbers("padding", padding, dims, 0)
    sizes = zip(input.shape[-dims:], kernel, step, pad, strict=True)
    usual = tuple((n - 1) * s + k - 2 * p for n, k, s, p in sizes)
    if output_size is None:
        return usual
    given = tuple(output_size)
    given = given[2:] if len(given) == dims + 2 else given
    if len(given) != dims:
        raise ValueError(f"output_size: expected {dims} or {dims + 2} sizes, got {output_size!r}")
    for n, u, s in zip(given, usual, step, strict=True):
        if not u - s < n < u + s:
            raise ValueError(f"output_size: expected sizes within stride {step} of {usual}, got {output_size!r}")
    return given


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The inverse of `max_pool2d` with its indices, torch.nn.functional.max_unpool2d's signature.

    input: (N, C, H, W) or (C, H, W), fp32, bf16, fp16 or fp64; indices: int64, of its shape, places in an output plane.
    Result: input's dtype; size (n - 1) * stride + kernel_size - 2 * padding along each axis, or output_size, which must
    be within a stride of that.

    Bits: SPEC.md, "Pooling": of elements that have one place the last in row-major order stays, as where torch goes
    through them one after another. The gradient of every element is that of its place, as torch's. Differentiable any
    number of times. Raises RuntimeError for shapes, dtypes and indices that do not fit (on a GPU an index is a
    device-side assertion; under compilers and vmap indices are not looked at), ValueError for output_size.
    """
    return _unpooled("max_unpool2d", input, 2, indices, kernel_size, stride, padding, output_size)


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`max_unpool2d` of (N, C, L) or (C, L)."""
    return _unpooled("max_unpool1d", input, 1, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`max_unpool2d` of (N, C, D, H, W) or (C, D, H, W)."""
    return _unpooled("max_unpool3d", input, 3, indices, kernel_size, stride, padding, output_size)
