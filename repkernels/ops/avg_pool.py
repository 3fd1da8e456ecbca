"""Average pooling (SPEC.md, "Pooling"): the SUM over every window divided once.

The gradient of an element adds, ascending, what each window that has it gives: its gradient divided once. A window that
is the whole input goes the way of `mean`, whose bits it has.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops import windows as arguments
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.sum import _run_share
from repkernels.ops.windows import Sizes
from repkernels.windows import Windows, windows

# What stands for a divisor: the window's positions with the padding, or those inside of the input.
PADDED, INSIDE = 0, 1


def _run(x: Tensor, geometry: list[int], last: bool, divide_by: int, divisor: int) -> Tensor:
    w = windows(geometry)
    if x.numel() and w.whole and divisor == 0:
        terms = x.flatten(2).permute(2, 0, 1)[None]
        mean = backend("sum", checks.device_type(x)).reduce(terms, "value", None, "mean", w.taps, x.dtype)
        return _as(mean, x, last)
    out = _fake(x, geometry, last, divide_by, divisor)
    if out.numel():
        backend("avg_pool", checks.device_type(x)).forward(x, out, w, divide_by, divisor)
    return out


def _as(mean: Tensor, x: Tensor, last: bool) -> Tensor:
    """The means of the N * C planes as `_fake` has them."""
    samples, channels = x.shape[:2]
    one = channels if last else 1
    return mean.as_strided((samples, channels, 1, 1, 1), (channels, 1, one, one, one))


def _fake(x: Tensor, geometry: list[int], last: bool, divide_by: int, divisor: int) -> Tensor:
    return arguments.empty(x, windows(geometry), last)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.arguments = inputs


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _gradient(grad, *ctx.arguments), None, None, None, None


def _run_gradient(grad: Tensor, geometry: list[int], last: bool, divide_by: int, divisor: int) -> Tensor:
    w = windows(geometry)
    out = _fake_gradient(grad, geometry, last, divide_by, divisor)
    if grad.numel() == 0:
        return out.zero_()
    if w.whole and divisor == 0:
        return out.copy_(_run_share(grad, w.taps, grad.dtype))
    backend("avg_pool", checks.device_type(grad)).backward(grad, out, w, divide_by, divisor)
    return out


def _fake_gradient(grad: Tensor, geometry: list[int], last: bool, divide_by: int, divisor: int) -> Tensor:
    w = windows(geometry)
    return arguments.empty(grad, w, last, w.size)


def _backward_gradient(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
    return _avg_pool(upstream, *ctx.arguments), None, None, None, None


def _vmap(*args: Any) -> Any:
    return arguments.folded(_avg_pool, 1)(*args)


def _vmap_gradient(*args: Any) -> Any:
    return arguments.folded(_gradient, 1)(*args)


_avg_pool = operation("avg_pool", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "avg_pool_gradient", _run_gradient, _fake_gradient, _setup_context, _backward_gradient, _vmap_gradient
)


def _pooled(
    input: Tensor, x: Tensor, w: Windows, dims: int, batched: bool, divide_by: int = INSIDE, divisor: int = 0
) -> Tensor:
    y = _avg_pool(x, w.flat(), batched and arguments.channels_last(input), divide_by, divisor)
    return arguments.result(y, dims, batched)


def _avg(
    name: str, input: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, ceil_mode: bool,
    count_include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    x, batched = arguments.operand(name, input, dims)
    w = arguments.regular(name, x, dims, kernel_size, stride, padding, 1, ceil_mode)
    if divisor is not None and not isinstance(divisor, (int, torch.SymInt)):
        raise TypeError(f"divisor_override: expected an int or None, got {type(divisor).__name__}")
    if divisor == 0:
        raise RuntimeError("divisor_override: must not be zero")
    return _pooled(input, x, w, dims, batched, PADDED if count_include_pad else INSIDE, divisor or 0)


def _adaptive(name: str, input: Tensor, dims: int, output_size: Any) -> Tensor:
    x, batched = arguments.operand(name, input, dims, channels=False)
    return _pooled(input, x, arguments.to_output(x, dims, output_size), dims, batched)


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of every window, torch.nn.functional.avg_pool2d's signature.

    input: (N, C, H, W) or (C, H, W), fp32, bf16, fp16 or fp64, any strides. kernel_size, stride (kernel_size if None),
    padding: an int, or one for each axis. The divisor is divisor_override, or the number of the window's positions in
    the padded input (count_include_pad) or in the input. Result: input's dtype, channels_last where input is,
    otherwise contiguous.

    Bits: SPEC.md, "Pooling": div_rn(SUM, RN(divisor)), each tap at its own place of the sum. The gradient of an element
    adds div_rn(g, RN(divisor)) of its windows in ascending order. Differentiable any number of times.
    Accuracy: as `repkernels.mean` of as many terms as the kernel has taps.
    Raises RuntimeError for sizes that do not fit, TypeError for what is no int, as torch.
    """
    return _avg("avg_pool2d", input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """`avg_pool2d` of (N, C, L) or (C, L)."""
    return _avg("avg_pool1d", input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`avg_pool2d` of (N, C, D, H, W) or (C, D, H, W)."""
    return _avg("avg_pool3d", input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of `output_size` windows, torch.nn.functional.adaptive_avg_pool2d's signature.

    Window o of an axis holds the positions floor(o * size / output) .. ceil((o + 1) * size / output) - 1; None leaves
    the axis as it is. The rest is as for `avg_pool2d`; with one window the bits are those of `repkernels.mean`.
    """
    return _adaptive("adaptive_avg_pool2d", input, 2, output_size)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d` of (N, C, L) or (C, L)."""
    return _adaptive("adaptive_avg_pool1d", input, 1, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d` of (N, C, D, H, W) or (C, D, H, W)."""
    return _adaptive("adaptive_avg_pool3d", input, 3, output_size)
