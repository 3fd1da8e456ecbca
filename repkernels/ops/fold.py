"""Windows as columns and back (SPEC.md, "Resampling"): copies, and sums of what overlaps."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.resample import resample

Pair = tuple[int, int]


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of (N, C, H, W) or (C, H, W) as columns (N, C * kh * kw, L): torch.nn.functional.unfold.

    fp32, bf16, fp16 or fp64, any strides; result contiguous. Outside the input is +0. The gradient is `fold`.
    Differentiable any number of times. Raises RuntimeError for sizes that do not fit, NotImplementedError for other
    dtypes.
    """
    checks.operand("input", input)
    kernel, stretch, around, step = _geometry(kernel_size, dilation, padding, stride)
    if input.ndim not in (3, 4) or 0 in input.shape[-3:]:
        raise RuntimeError(
            "input: Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions, "
            f"got shape {tuple(input.shape)}"
        )
    x = input if input.ndim == 4 else input[None]
    blocks = _blocks((x.shape[2], x.shape[3]), kernel, stretch, around, step)
    outputs = [k * b for k, b in zip(kernel, blocks, strict=True)]
    joined = resample(x.contiguous(), "windows", outputs, list(zip(kernel, stretch, around, step, strict=True)))
    split = joined.view(*x.shape[:2], kernel[0], blocks[0], kernel[1], blocks[1])
    columns = split.permute(0, 1, 2, 4, 3, 5).reshape(
        x.shape[0], x.shape[1] * kernel[0] * kernel[1], blocks[0] * blocks[1]
    )
    return columns if input.ndim == 4 else columns[0]


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Columns (N, C * kh * kw, L) or (C * kh * kw, L) summed into (N, C, H, W): torch.nn.functional.fold.

    Bits: SPEC.md, "Resampling": along the last axis, then along the other, contributions one after another, ascending.
    Dtypes and errors are those of `unfold`, whose gradient this is.
    """
    checks.operand("input", input)
    kernel, stretch, around, step = _geometry(kernel_size, dilation, padding, stride)
    size = _pair("output_size", output_size, 1)
    if input.ndim not in (2, 3) or 0 in input.shape[-2:]:
        raise RuntimeError(
            "input: Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions "
            f"for input, got shape {tuple(input.shape)}"
        )
    x = input if input.ndim == 3 else input[None]
    if x.shape[1] % (kernel[0] * kernel[1]):
        raise RuntimeError(
            f"input: Expected size of input's dimension 1 to be divisible by the product of kernel_size {kernel}, got "
            f"{x.shape[1]}"
        )
    blocks = _blocks(size, kernel, stretch, around, step)
    if x.shape[2] != blocks[0] * blocks[1]:
        raise RuntimeError(
            f"input: Given output_size={size}, kernel_size={kernel}, dilation={stretch}, padding={around}, "
            f"stride={step}, expected size of input's dimension 2 to match the calculated number of sliding blocks "
            f"{blocks[0]} * {blocks[1]} = {blocks[0] * blocks[1]}, but got {x.shape[2]}"
        )
    channels = x.shape[1] // (kernel[0] * kernel[1])
    split = x.reshape(x.shape[0], channels, *kernel, *blocks).permute(0, 1, 2, 4, 3, 5)
    joined = split.reshape(x.shape[0], channels, kernel[0] * blocks[0], kernel[1] * blocks[1])
    options = list(zip(kernel, stretch, around, step, strict=True))
    image = resample(joined, "windows", size, options, transposed=True)
    return image if input.ndim == 3 else image[0]


def _geometry(kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> tuple[Pair, Pair, Pair, Pair]:
    return (
        _pair("kernel_size", kernel_size, 1),
        _pair("dilation", dilation, 1),
        _pair("padding", padding, 0),
        _pair("stride", stride, 1),
    )


def _pair(name: str, value: Any, least: int) -> Pair:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or min(pair) < least:
        raise RuntimeError(f"{name}: expected one or two ints, {least} or more, got {value}")
    return pair[0], pair[1]


def _blocks(size: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> list[int]:
    """Windows along each axis."""
    blocks = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    ]
    if min(blocks) < 1:
        raise RuntimeError(
            f"kernel_size: {kernel} with dilation {dilation}, padding {padding} and stride {stride} gives {blocks} "
            f"windows of spatial size {size}; each must be at least one"
        )
    return blocks
