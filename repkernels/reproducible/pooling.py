"""Pooling, resampling and padding, below autograd: from this library's functions of torch's names."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from repkernels.nn import functional
from repkernels.reproducible.gradients import gradients

WHY = "torch adds contributions, or weighs neighbours, in another order on each device"


def ours(name: str) -> Callable[..., Any]:
    """`repkernels.nn.functional.NAME`; NotImplementedError where there is none."""
    function = getattr(functional, name, None)
    if function is None:
        raise NotImplementedError(f"this library has no {name}")
    return function


def _sizes(value: Any) -> Any:
    """A list of ints as a function of torch.nn.functional takes it; nothing for an empty one."""
    return (
        None if value is None or value == [] else [int(v) for v in value] if isinstance(value, (list, tuple)) else value
    )


def _max_pool(axes: int) -> dict[str, Callable[..., Any]]:
    def options(
        kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> tuple[Any, ...]:
        return _sizes(kernel_size), _sizes(list(stride)), _sizes(padding), _sizes(dilation), ceil_mode

    def forward(input: Tensor, *args: Any) -> Any:
        return ours(f"max_pool{axes}d")(input, *options(*args), return_indices=True)

    def backward(grad_output: Tensor, input: Tensor, *args: Any) -> Tensor | None:
        *rest, _ = args
        return gradients(lambda x: forward(x, *rest)[0], (input,), grad_output)[0]

    return {f"max_pool{axes}d_with_indices": forward, f"max_pool{axes}d_with_indices_backward": backward}


def _avg_pool(axes: int) -> dict[str, Callable[..., Any]]:
    def forward(
        input: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        rest = (_sizes(padding), ceil_mode, count_include_pad)
        if axes > 1:
            rest = (*rest, divisor_override)  # type: ignore[assignment]
        return ours(f"avg_pool{axes}d")(input, _sizes(kernel_size), _sizes(list(stride)), *rest)

    def backward(grad_output: Tensor, input: Tensor, *args: Any) -> Tensor | None:
        return gradients(lambda x: forward(x, *args), (input,), grad_output)[0]

    return {f"avg_pool{axes}d": forward} | ({f"avg_pool{axes}d_backward": backward} if axes > 1 else {})


def _adaptive(axes: int) -> dict[str, Callable[..., Any]]:
    def average(input: Tensor, output_size: Any) -> Tensor:
        return ours(f"adaptive_avg_pool{axes}d")(input, _sizes(output_size))

    def average_backward(grad_output: Tensor, input: Tensor) -> Tensor | None:
        return gradients(lambda x: average(x, grad_output.shape[-axes:]), (input,), grad_output)[0]

    def largest(input: Tensor, output_size: Any) -> Any:
        return ours(f"adaptive_max_pool{axes}d")(input, _sizes(output_size), return_indices=True)

    def largest_backward(grad_output: Tensor, input: Tensor, indices: Tensor) -> Tensor | None:
        return gradients(lambda x: largest(x, grad_output.shape[-axes:])[0], (input,), grad_output)[0]

    return {
        f"_adaptive_avg_pool{axes}d": average,
        f"_adaptive_avg_pool{axes}d_backward": average_backward,
        f"adaptive_max_pool{axes}d": largest,
        f"adaptive_max_pool{axes}d_backward": largest_backward,
    }


def _upsample(aten: str, mode: str, aligned: bool) -> dict[str, Callable[..., Any]]:
    """aten's form of one kind of interpolation: (input, output_size, [align_corners,] *scales)."""

    def forward(input: Tensor, output_size: Any, *args: Any) -> Tensor:
        corners, scales = (args[0], args[1:]) if aligned else (None, args)
        named: dict[str, Any] = {"mode": mode, "align_corners": corners} if aligned else {"mode": mode}
        given = [s for s in scales if s is not None]
        if given and len(given) == len(scales):  # the scale itself decides where output positions lie
            sizes = [int(n * s) for n, s in zip(input.shape[2:], given, strict=True)]
            if sizes == list(output_size):
                return ours("interpolate")(input, scale_factor=given, **named)
            raise NotImplementedError("interpolation by a scale that gives another size is not supported")
        return ours("interpolate")(input, size=_sizes(output_size), **named)

    def vector(input: Tensor, output_size: Any, *args: Any) -> Tensor:
        *rest, scales = args
        axes = input.ndim - 2
        if output_size is None:
            output_size = [int(n * s) for n, s in zip(input.shape[2:], scales, strict=True)]
        return forward(input, output_size, *rest, *(scales or [None] * axes))

    def backward(grad_output: Tensor, output_size: Any, input_size: Any, *args: Any) -> Tensor | None:
        x = grad_output.new_zeros([int(n) for n in input_size])
        return gradients(lambda x: forward(x, output_size, *args), (x,), grad_output)[0]

    return {aten: forward, f"{aten}.vec": vector, f"{aten}_backward": backward}


def _grid_sample(axes: int) -> dict[str, Callable[..., Any]]:
    modes, pads = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")

    def forward(input: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
        return ours("grid_sample")(input, grid, modes[interpolation], pads[padding], align_corners)

    def backward(grad_output: Tensor, input: Tensor, grid: Tensor, *args: Any) -> tuple[Tensor | None, ...]:
        *options, mask = args
        return gradients(lambda x, y: forward(x, y, *options), (input, grid), grad_output, mask)

    return {f"grid_sampler_{axes}d": forward, f"grid_sampler_{axes}d_backward": backward}


def _pad_backward(mode: str) -> Callable[..., Tensor | None]:
    def call(grad_output: Tensor, input: Tensor, padding: Sequence[int]) -> Tensor | None:
        return gradients(lambda x: ours("pad")(x, list(padding), mode), (input,), grad_output)[0]

    return call


ATEN: dict[str, Callable[..., Any]] = {
    **_max_pool(2),
    **_max_pool(3),
    **_avg_pool(1),
    **_avg_pool(2),
    **_avg_pool(3),
    **_adaptive(2),
    **_adaptive(3),
    **{k: f for axes in (1, 2, 3) for k, f in _upsample(f"upsample_nearest{axes}d", "nearest", False).items()},
    **{
        k: f
        for axes in (1, 2, 3)
        for k, f in _upsample(f"_upsample_nearest_exact{axes}d", "nearest-exact", False).items()
    },
    **_upsample("upsample_linear1d", "linear", True),
    **_upsample("upsample_bilinear2d", "bilinear", True),
    **_upsample("upsample_trilinear3d", "trilinear", True),
    **_upsample("upsample_bicubic2d", "bicubic", True),
    **_grid_sample(2),
    **_grid_sample(3),
    **{f"reflection_pad{axes}d_backward": _pad_backward("reflect") for axes in (1, 2, 3)},
    **{f"replication_pad{axes}d_backward": _pad_backward("replicate") for axes in (1, 2, 3)},
}
