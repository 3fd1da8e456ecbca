"""What pooling operations ask of their arguments, as torch does, and the windows that follow from them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.batch_norm import memory_format
from repkernels.windows import Triple, Windows, adaptive

Sizes = int | Sequence[int]


def operand(name: str, input: Tensor, dims: int, channels: bool = True) -> tuple[Tensor, bool]:
    """input (C, ...) or (N, C, ...) with `dims` spatial axes as (N, C, D, H, W), a view; and whether it had an N.

    channels: there must be some. Three-dimensional pooling is fp32 under autocast on a CPU, as torch's.
    """
    checks.operand("input", input)
    if input.ndim not in (dims + 1, dims + 2):
        raise RuntimeError(
            f"{name}: input: expected {dims + 1} or {dims + 2} dimensions, (C, ...) or (N, C, ...), "
            f"got shape {tuple(input.shape)}"
        )
    batched = input.ndim == dims + 2
    if 0 in input.shape[batched if channels else -dims :]:
        allowed = "the batch" if channels else "the batch and the channels"
        raise RuntimeError(f"{name}: input: only {allowed} may be empty, got shape {tuple(input.shape)}")
    half = input.dtype in (torch.bfloat16, torch.float16)
    if dims == 3 and half and input.is_cpu and checks.autocast("cpu") is not None:
        input = input.float()
    x = input if batched else input.unsqueeze(0)
    for _ in range(3 - dims):
        x = x.unsqueeze(2)
    return x, batched


def result(y: Tensor, dims: int, batched: bool) -> Tensor:
    """y (N, C, D, H, W) with the axes of the input: the inverse of `operand`."""
    for _ in range(3 - dims):
        y = y.squeeze(2)
    return y if batched else y.squeeze(0)


def channels_last(input: Tensor) -> bool:
    """Whether the result lies as channels_last."""
    return memory_format(input) is not None


def numbers(name: str, value: Any, dims: int, least: int) -> tuple[int, ...]:
    """`value`, an int or 1 or `dims` of them, as `dims` ints >= least."""
    given = tuple(value) if isinstance(value, (list, tuple, torch.Size)) else (value,)
    if not all(isinstance(v, (int, torch.SymInt)) and not isinstance(v, bool) for v in given):
        raise TypeError(f"{name}: expected an int or {dims} ints, got {value!r}")
    if len(given) not in (1, dims):
        raise RuntimeError(f"{name}: expected an int or {dims} ints, got {len(given)} of them: {value!r}")
    if any(v < least for v in given):
        raise RuntimeError(f"{name}: expected values >= {least}, got {value!r}")
    return given * dims if len(given) == 1 else given


def padded(values: Sequence[int], fill: int) -> Triple:
    """Up to three numbers as those of the last axes."""
    a, b, c = (*[fill] * (3 - len(values)), *values)
    return a, b, c


def regular(
    name: str, x: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes,
    ceil_mode: bool,
) -> Windows:  # fmt: skip
    """Windows of one size, with torch's checks; x (N, C, D, H, W). stride None or empty: kernel_size."""
    kernel = numbers("kernel_size", kernel_size, dims, 1)
    empty = stride is None or isinstance(stride, (list, tuple)) and not stride
    step = kernel if empty else numbers("stride", stride, dims, 1)
    pad, apart = numbers("padding", padding, dims, 0), numbers("dilation", dilation, dims, 1)
    for p, k, d in zip(pad, kernel, apart, strict=True):
        if p > ((k - 1) * d + 1) // 2:
            raise RuntimeError(f"padding: must be at most half of the kernel, got {padding!r} for {kernel_size!r}")
    size = tuple(x.shape[5 - dims :])
    output = tuple(_length(*axis, ceil_mode) for axis in zip(size, kernel, step, pad, apart, strict=True))
    if any(o < 1 for o in output):
        raise RuntimeError(f"{name}: the kernel is larger than the padded input: {size} gives an output of {output}")
    whole, reach = padded(size, 1), padded(kernel, 1)
    return Windows(whole, reach, padded(step, 1), padded(pad, 0), padded(apart, 1), padded(output, 1), False)


def _length(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    output = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    # The last window must begin inside of the input or its left padding.
    return output - 1 if ceil_mode and (output - 1) * stride >= size + padding else output


def to_output(x: Tensor, dims: int, output_size: Any) -> Windows:
    """Adaptive windows; None in output_size leaves an axis as it is."""
    size = padded(tuple(x.shape[5 - dims :]), 1)
    given = tuple(output_size) if isinstance(output_size, (list, tuple, torch.Size)) else (output_size,) * dims
    given = given * dims if len(given) == 1 else given
    if len(given) != dims:
        raise RuntimeError(f"output_size: expected an int or {dims} ints, got {output_size!r}")
    wanted = [n if o is None else o for o, n in zip(given, size[3 - dims :], strict=True)]
    return adaptive(size, padded(numbers("output_size", wanted, dims, 0), 1))


def empty(x: Tensor, w: Windows, last: bool, size: Triple | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a result (N, C, *size), by default of w's output size, in channels_last if `last`."""
    form = torch.channels_last_3d if last else torch.contiguous_format
    shape = (*x.shape[:2], *(w.output if size is None else size))
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=form)


def folded(call: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The batching rule of an operation of `count` tensors (N, C, ...) first: a batch of them is a longer one."""

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        tensors = [
            t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
            for t, d in zip(args[:count], in_dims, strict=False)
        ]
        results = call(*(t.flatten(0, 1) for t in tensors), *args[count:])
        if isinstance(results, tuple):
            return tuple(r.unflatten(0, tensors[0].shape[:2]) for r in results), (0,) * len(results)
        return results.unflatten(0, tensors[0].shape[:2]), 0

    return vmap


def volume(t: Triple) -> int:
    """The product."""
    return math.prod(t)
