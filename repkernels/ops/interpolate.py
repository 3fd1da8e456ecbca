"""Resizing (SPEC.md, "Resampling"): weights from binary64 coordinates, the last axis first, gradients that gather."""

import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.resample import resample

# By mode: the rule of ops/taps.py, and the numbers of axes it is for.
RULES = {
    "nearest": ("nearest", (1, 2, 3)),
    "nearest-exact": ("nearest-exact", (1, 2, 3)),
    "linear": ("linear", (1,)),
    "bilinear": ("linear", (2,)),
    "trilinear": ("linear", (3,)),
    "bicubic": ("cubic", (2,)),
}
WITHOUT_CORNERS = ("nearest", "area", "nearest-exact")
ANTIALIAS = ("bilinear", "bicubic")


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """`input` resized along all axes but the first two: torch.nn.functional.interpolate's signature.

    input: (N, C, d1), (N, C, d1, d2) or (N, C, d1, d2, d3), fp32, bf16, fp16 or fp64, any strides. mode: "nearest",
    "nearest-exact", "area", "linear" (one axis), "bilinear", "bicubic" (two), "trilinear" (three). antialias: for
    bilinear and bicubic. Result: (N, C, *size) in torch's memory format; without `size` floor(d * scale_factor).
    Bits: SPEC.md, "Resampling". Nearest neighbours are torch's; the other coordinates are computed in binary64, where
    torch rounds them to fp32 on the way. Differentiable any number of times, no atomic operations.
    Raises ValueError, TypeError and NotImplementedError where torch does, RuntimeError for empty sizes, and
    NotImplementedError for "lanczos" and other dtypes.
    """
    checks.operand("input", input)
    axes = input.ndim - 2
    if mode in WITHOUT_CORNERS:
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | "
                "trilinear"
            )
    sizes, factors = _sizes(input, size, scale_factor, recompute_scale_factor or mode == "area")
    if recompute_scale_factor and size is not None:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias and (mode not in ANTIALIAS or axes != 2):
        raise ValueError("antialias: restricted to the modes bilinear and bicubic of a 4-D input")
    if mode == "area":
        return _area(input, sizes)
    rule, allowed = RULES.get(mode, ("", ()))
    if axes not in allowed:
        wanted = " or ".join(f"{a + 2}D" for a in allowed) if allowed else f"one of {', '.join((*RULES, 'area'))}"
        raise NotImplementedError(f"mode: Got {input.ndim}D input, but {mode} mode needs {wanted}")
    if 0 in input.shape[1:] or min(sizes) < 1:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {tuple(input.shape)} and output {sizes}; "
            "only the batch may be empty"
        )
    options = [(factor or 0.0, float(bool(align_corners))) for factor in factors]
    return resample(input, f"{rule} antialias" if antialias else rule, sizes, options)


def _sizes(input: Tensor, size: Any, scale_factor: Any, recompute: bool) -> tuple[list[int], Sequence[float | None]]:
    """The sizes of the result, and for each axis the scale factor where coordinates are to follow it."""
    axes = input.ndim - 2
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        sizes = list(size) if isinstance(size, list | tuple) else [size] * axes
        if len(sizes) != axes:
            raise ValueError(
                f"size: got {size} for input of shape {tuple(input.shape)}; one number, or one for each of {axes} axes"
            )
        try:
            return [n.__index__() for n in sizes], [None] * axes
        except AttributeError:
            raise TypeError(
                f"size: expected an int or a tuple of ints, got types {[type(n).__name__ for n in sizes]}"
            ) from None
    if scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    factors = list(scale_factor) if isinstance(scale_factor, list | tuple) else [scale_factor] * axes
    if len(factors) != axes:
        raise ValueError(
            f"scale_factor: got {scale_factor} for input of shape {tuple(input.shape)}; one number, or one for each of "
            f"{axes} axes"
        )
    factors = [checks.number("scale_factor", factor) for factor in factors]
    sizes = [int(n * factor) for n, factor in zip(input.shape[2:], factors, strict=True)]
    return sizes, [None] * axes if recompute else factors


def _area(input: Tensor, sizes: Sequence[int]) -> Tensor:
    from repkernels.ops import avg_pool

    if input.ndim not in (3, 4, 5):
        raise NotImplementedError(f"mode: area needs 3D, 4D or 5D input, got {input.ndim}D")
    pools = avg_pool.adaptive_avg_pool1d, avg_pool.adaptive_avg_pool2d, avg_pool.adaptive_avg_pool3d
    return pools[input.ndim - 3](input, list(sizes))


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """`interpolate`, under the deprecated name of torch.nn.functional.upsample."""
    warnings.warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2)
    return interpolate(input, size, scale_factor, mode, align_corners)
