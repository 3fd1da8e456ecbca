"""Max pooling (SPEC.md, "Pooling"): the largest element of every window, and which one it is.

The forward pass keeps the number of the tap that was taken, a byte for windows of up to 255 taps. The gradient of an
element is the sum, ascending, of the gradients of the results that took it: every element collects its own.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops import windows as arguments
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.windows import Sizes
from repkernels.windows import Windows, windows

_Two = tuple[Tensor, Tensor]


def _run(x: Tensor, geometry: list[int], last: bool) -> tuple[Tensor, Tensor]:
    w = windows(geometry)
    values, taps = _fake(x, geometry, last)
    if values.numel():
        backend("max_pool", checks.device_type(x)).forward(x, None, values, taps, w)
    return values, taps


def _fake(x: Tensor, geometry: list[int], last: bool) -> _Two:
    w = windows(geometry)
    return arguments.empty(x, w, last), arguments.empty(x, w, last, dtype=tap_type(w))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Two) -> None:
    _, ctx.geometry, ctx.last = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
    (taps,) = ctx.saved_tensors
    return _gradient(grad, taps, ctx.geometry, ctx.last), None, None


def _run_gradient(grad: Tensor, taps: Tensor, geometry: list[int], last: bool) -> Tensor:
    w = windows(geometry)
    out = _fake_gradient(grad, taps, geometry, last)
    if grad.numel() == 0:
        return out.zero_()
    # Both are read by one set of strides.
    g = grad if grad.stride() == taps.stride() else torch.empty_like(taps, dtype=grad.dtype).copy_(grad)
    backend("max_pool", checks.device_type(grad)).backward(g, taps, out, w)
    return out


def _fake_gradient(grad: Tensor, taps: Tensor, geometry: list[int], last: bool) -> Tensor:
    w = windows(geometry)
    return arguments.empty(grad, w, last, w.size)


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, taps, ctx.geometry, ctx.last = inputs
    ctx.save_for_backward(taps)


def _backward_gradient(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
    (taps,) = ctx.saved_tensors
    return _pick(upstream, taps, ctx.geometry, ctx.last), None, None, None


def _run_pick(x: Tensor, taps: Tensor, geometry: list[int], last: bool) -> Tensor:
    w = windows(geometry)
    out = _fake_pick(x, taps, geometry, last)
    if not out.numel():
        return out
    index = positions(taps, w).flatten(2)
    picked = x.flatten(2).gather(2, index.clamp(min=0)).masked_fill_(index < 0, 0)
    return out.copy_(picked.view(out.shape))


def _fake_pick(x: Tensor, taps: Tensor, geometry: list[int], last: bool) -> Tensor:
    return arguments.empty(x, windows(geometry), last)


def _backward_pick(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (taps,) = ctx.saved_tensors
    return _gradient(grad, taps, ctx.geometry, ctx.last), None, None, None


def _vmap(*args: Any) -> Any:
    return arguments.folded(_max_pool, 1)(*args)


def _vmap_gradient(*args: Any) -> Any:
    return arguments.folded(_gradient, 2)(*args)


def _vmap_pick(*args: Any) -> Any:
    return arguments.folded(_pick, 2)(*args)


_max_pool = operation("max_pool", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "max_pool_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)
_pick = operation("max_pool_pick", _run_pick, _fake_pick, _setup_gradient, _backward_pick, _vmap_pick)


def tap_type(w: Windows) -> torch.dtype:
    """What holds a tap's number, and the number for no tap, which is -1 as this type has it."""
    return torch.uint8 if w.taps <= 255 else torch.int32


def positions(taps: Tensor, w: Windows) -> Tensor:
    """Where the taps (N, C, *output) are among an input's positions, flattened row-major: int64, -1 for no tap."""
    t = taps.long()
    along = (t // (w.kernel[1] * w.kernel[2]), t // w.kernel[2] % w.kernel[1], t % w.kernel[2])
    flat = torch.zeros_like(t)
    for axis, tap in enumerate(along):
        o = torch.arange(w.output[axis], device=taps.device)
        first = o * w.size[axis] // w.output[axis] if w.adaptive else o * w.stride[axis] - w.padding[axis]
        shape = [1] * 5
        shape[2 + axis] = -1
        flat = flat * w.size[axis] + (first.view(shape) + tap * w.dilation[axis])
    return flat.masked_fill_(taps == (255 if taps.dtype == torch.uint8 else -1), -1)


def _pooled(input: Tensor, x: Tensor, w: Windows, dims: int, batched: bool, indices: bool) -> Any:
    y, taps = _max_pool(x, w.flat(), batched and arguments.channels_last(input))
    y = arguments.result(y, dims, batched)
    return (y, arguments.result(positions(taps, w), dims, batched)) if indices else y


def _max(
    name: str, input: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes,
    ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    x, batched = arguments.operand(name, input, dims)
    w = arguments.regular(name, x, dims, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(input, x, w, dims, batched, return_indices)


def _adaptive(name: str, input: Tensor, dims: int, output_size: Any, return_indices: bool) -> Any:
    x, batched = arguments.operand(name, input, dims)
    return _pooled(input, x, arguments.to_output(x, dims, output_size), dims, batched, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of every window, torch.nn.functional.max_pool2d's signature.

    input: (N, C, H, W) or (C, H, W), fp32, bf16, fp16 or fp64, any strides. kernel_size, stride (kernel_size if None),
    padding, dilation: an int, or one for each axis. ceil_mode: a last window that begins inside counts, even if it
    reaches beyond. Result: input's dtype, channels_last where input is, otherwise contiguous; with return_indices a
    pair with the elements' places in their plane, row-major, int64.

    Bits: SPEC.md, "Pooling": nothing is rounded; of equal elements the first, zeros being equal, is taken, and of NaN,
    which are above all numbers, the last. A window without elements (dilation can make one) gives -inf and index -1.
    Its gradient adds, in ascending order, those of the windows that took an element. Differentiable any number of
    times. Raises RuntimeError for sizes that do not fit, TypeError for what is no int, as torch.
    """
    return _max("max_pool2d", input, 2, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` of (N, C, L) or (C, L)."""
    return _max("max_pool1d", input, 1, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` of (N, C, D, H, W) or (C, D, H, W)."""
    return _max("max_pool3d", input, 3, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool1d_with_indices(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> _Two:  # fmt: skip
    """`max_pool1d` with indices."""
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool2d_with_indices(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> _Two:  # fmt: skip
    """`max_pool2d` with indices."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool3d_with_indices(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> _Two:  # fmt: skip
    """`max_pool3d` with indices."""
    return max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest element of each of `output_size` windows, torch.nn.functional.adaptive_max_pool2d's signature.

    Window o of an axis holds the positions floor(o * size / output) .. ceil((o + 1) * size / output) - 1; None leaves
    the axis as it is. The rest is as for `max_pool2d`.
    """
    return _adaptive("adaptive_max_pool2d", input, 2, output_size, return_indices)


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` of (N, C, L) or (C, L)."""
    return _adaptive("adaptive_max_pool1d", input, 1, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` of (N, C, D, H, W) or (C, D, H, W)."""
    return _adaptive("adaptive_max_pool3d", input, 3, output_size, return_indices)


def adaptive_max_pool1d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> _Two:
    """`adaptive_max_pool1d` with indices."""
    return adaptive_max_pool1d(input, output_size, True)


def adaptive_max_pool2d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> _Two:
    """`adaptive_max_pool2d` with indices."""
    return adaptive_max_pool2d(input, output_size, True)


def adaptive_max_pool3d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> _Two:
    """`adaptive_max_pool3d` with indices."""
    return adaptive_max_pool3d(input, output_size, True)
