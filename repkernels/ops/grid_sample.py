"""Sampling at the places of a grid (SPEC.md, "grid_sample"), and grids of affine maps.

Every output position has taps: places of the input with weights. The gradient of the input is a grouped sum of what the
positions send to a place, ascending; so no two threads ever add to one place, however the grid folds.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.elementwise import elementwise
from repkernels.ops.grouped_sum import groups
from repkernels.ops.matmul import matmul
from repkernels.ops.operation import operation

# Taps along an axis.
MODES = {"nearest": 1, "bilinear": 2, "bicubic": 4}
PADDINGS = ("zeros", "border", "reflection")
# Terms of the input's gradient that are made at a time.
TERMS = 1 << 26


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _taps(
    grid: Tensor, sizes: tuple[int, ...], mode: int, padding: str, align: bool, gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    axes = grid.shape[-1]
    flat = grid.reshape(-1, axes).contiguous()
    shape = (flat.shape[0], mode**axes)
    index = torch.empty(shape, dtype=torch.int32, device=grid.device)
    weight = torch.empty(shape, dtype=_wide(grid), device=grid.device)
    slopes, factors = (
        (weight.new_empty((*shape, axes)), weight.new_empty((shape[0], axes))) if gradient else (None, None)
    )
    kernels = backend("grid_sample", grid.device.type)
    kernels.taps(flat, index, weight, slopes, factors, sizes, mode, padding, align)
    return index, weight, slopes, factors


def _run(x: Tensor, grid: Tensor, mode: int, padding: str, align: bool) -> Tensor:
    out = x.new_empty((*x.shape[:2], *grid.shape[1:-1]))
    if out.numel():
        index, weight, *_ = _taps(grid, tuple(x.shape[2:]), mode, padding, align, False)
        backend("grid_sample", x.device.type).gather(x.flatten(2), index, weight, out.flatten(2))
    return out


def _fake(x: Tensor, grid: Tensor, mode: int, padding: str, align: bool) -> Tensor:
    return x.new_empty((*x.shape[:2], *grid.shape[1:-1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, grid, ctx.mode, ctx.padding, ctx.align = inputs
    ctx.save_for_backward(x, grid)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, grid = ctx.saved_tensors
    options = ctx.mode, ctx.padding, ctx.align
    of_x = _input_gradient(grad, x, grid, *options) if ctx.needs_input_grad[0] else None
    of_grid = _grid_gradient(grad, x, grid, *options) if ctx.needs_input_grad[1] else None
    return of_x, of_grid, None, None, None


def _run_input(g: Tensor, x: Tensor, grid: Tensor, mode: int, padding: str, align: bool) -> Tensor:
    """Terms RN(g * w) of all positions and taps, summed by the place they are sent to."""
    samples, channels = x.shape[:2]
    size, positions = math.prod(x.shape[2:]), math.prod(grid.shape[1:-1])
    if not g.numel():
        return x.new_zeros(x.shape)
    index, weight, *_ = _taps(grid, tuple(x.shape[2:]), mode, padding, align, False)
    index, weight = (t.view(samples, positions, -1) for t in (index, weight))
    rows = x.new_empty((samples, size, channels))
    step = max(1, TERMS // (weight[0].numel() * channels))
    for first in range(0, samples, step):
        part = slice(first, first + step)
        count = min(step, samples - first)
        upstream = g[part].flatten(2).permute(0, 2, 1).to(weight.dtype).contiguous()
        terms = elementwise("addcmul_gradient", upstream[:, :, None], weight[part, :, :, None], s=1.0)
        own = torch.arange(count, device=x.device)[:, None, None] * size
        targets = torch.where(index[part] < 0, -1, index[part] + own).reshape(-1)
        order, starts = groups(targets, count * size)
        kernels = backend("grouped_sum", x.device.type)
        total = kernels.grouped_sum(terms.view(-1, channels), order, starts, None, 1.0, False, x.dtype)
        rows[part] = total.view(count, size, channels)
    return rows.permute(0, 2, 1).contiguous().view(x.shape)


def _fake_input(g: Tensor, x: Tensor, grid: Tensor, mode: int, padding: str, align: bool) -> Tensor:
    return x.new_empty(x.shape)


def _run_grid(g: Tensor, x: Tensor, grid: Tensor, mode: int, padding: str, align: bool) -> Tensor:
    out = grid.new_zeros(grid.shape)
    if g.numel() and mode != 1:
        index, _, slopes, factors = _taps(grid, tuple(x.shape[2:]), mode, padding, align, True)
        kernels = backend("grid_sample", x.device.type)
        kernels.grid_gradient(g.flatten(2), x.flatten(2), index, slopes, factors, out.view(-1, grid.shape[-1]))
    return out


def _fake_grid(g: Tensor, x: Tensor, grid: Tensor, mode: int, padding: str, align: bool) -> Tensor:
    return grid.new_empty(grid.shape)


def _setup_nothing(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    pass


def _no_second(ctx: Any, grad: Tensor) -> Any:
    raise NotImplementedError("grid_sample: gradients of its gradients are not supported, as in torch")


def _folded(info: Any, in_dims: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The batch of vmap and that of the samples as one."""
    size = info.batch_size
    moved = [t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=False)]
    return [t.reshape(-1, *t.shape[2:]) for t in moved]


def _vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, grid: Tensor, *options: Any) -> tuple[Tensor, int]:
    return _grid_sample(*_folded(info, in_dims, (x, grid)), *options).unflatten(0, (info.batch_size, -1)), 0


def _vmap_input(
    info: Any, in_dims: tuple[Any, ...], g: Tensor, x: Tensor, grid: Tensor, *options: Any
) -> tuple[Tensor, int]:
    return _input_gradient(*_folded(info, in_dims, (g, x, grid)), *options).unflatten(0, (info.batch_size, -1)), 0


def _vmap_grid(
    info: Any, in_dims: tuple[Any, ...], g: Tensor, x: Tensor, grid: Tensor, *options: Any
) -> tuple[Tensor, int]:
    return _grid_gradient(*_folded(info, in_dims, (g, x, grid)), *options).unflatten(0, (info.batch_size, -1)), 0


_grid_sample = operation("grid_sample", _run, _fake, _setup_context, _backward, _vmap)
_input_gradient = operation(
    "grid_sample_input_gradient", _run_input, _fake_input, _setup_nothing, _no_second, _vmap_input
)
_grid_gradient = operation("grid_sample_grid_gradient", _run_grid, _fake_grid, _setup_nothing, _no_second, _vmap_grid)


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """`input` at the places of `grid`: torch.nn.functional.grid_sample's signature.

    input: (N, C, H, W) or (N, C, D, H, W), fp32, bf16, fp16 or fp64, any strides. grid: (N, H', W', 2) as (x, y), or
    (N, D', H', W', 3) as (x, y, z), of input's dtype. mode: "bilinear" (trilinear in three axes), "nearest", "bicubic"
    (two axes). padding_mode: "zeros", "border", "reflection". Result: (N, C, H', W') or (N, C, D', H', W'), contiguous.
    Bits: SPEC.md, "grid_sample"; the gradient of input sums what meets at one place in ascending output position.
    Differentiable once by both, as in torch. Under autocast both take the wider dtype.
    Raises ValueError for an unknown mode, RuntimeError for shapes, dtypes and devices that do not fit,
    NotImplementedError for other dtypes.
    """
    checks.operand("input", input)
    checks.operand("grid", grid)
    if mode not in MODES:
        raise ValueError(f"mode: expected 'bilinear', 'nearest' or 'bicubic', got {mode!r}")
    if padding_mode not in PADDINGS:
        raise ValueError(f"padding_mode: expected 'zeros', 'border' or 'reflection', got {padding_mode!r}")
    align_corners = _corners("grid_sample", align_corners)
    if checks.autocast(input.device.type) is not None:
        dtype = torch.promote_types(input.dtype, grid.dtype)
        input, grid = input.to(dtype), grid.to(dtype)
    checks.same("grid", grid, "input", input)
    axes = input.ndim - 2
    if axes not in (2, 3) or grid.ndim != input.ndim:
        raise RuntimeError(
            f"grid and input: expected both 4D or both 5D, got shapes {tuple(grid.shape)} and {tuple(input.shape)}"
        )
    if grid.shape[0] != input.shape[0] or grid.shape[-1] != axes:
        raise RuntimeError(
            f"grid: expected shape ({input.shape[0]}, ..., {axes}) for input of shape {tuple(input.shape)}, got "
            f"{tuple(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(f"input: expected non-empty spatial dimensions, got shape {tuple(input.shape)}")
    if mode == "bicubic" and axes == 3:
        raise RuntimeError("mode: bicubic interpolation only supports 4D input")
    if math.prod(input.shape[2:]) >= 2**31:
        raise RuntimeError(f"input: fewer than 2^31 places are supported, got shape {tuple(input.shape)}")
    return _grid_sample(input, grid, MODES[mode], padding_mode, align_corners)


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """The grid of an affine map: torch.nn.functional.affine_grid's signature.

    theta: (N, 2, 3) for size (N, C, H, W) -> (N, H, W, 2); (N, 3, 4) for (N, C, D, H, W) -> (N, D, H, W, 3); fp32,
    bf16, fp16 or fp64. Bits: SPEC.md, "affine_grid": a product by the contract `ordered`, in the gradient too.
    Raises ValueError and NotImplementedError where torch does.
    """
    checks.operand("theta", theta, tuple({*checks.FLOATS, theta.dtype}) if isinstance(theta, Tensor) else checks.FLOATS)
    align_corners = _corners("affine_grid", align_corners)
    if not theta.is_floating_point():
        raise ValueError(f"theta: Expected theta to have floating point type, but got {theta.dtype}")
    sizes = [int(n) for n in size]
    axes = len(sizes) - 2
    if axes not in (2, 3):
        raise NotImplementedError(
            f"size: affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms. Got size {sizes}."
        )
    if theta.ndim != 3 or theta.shape[1:] != (axes, axes + 1) or theta.shape[0] != sizes[0]:
        raise ValueError(
            f"theta: Expected a batch of affine matrices of shape ({sizes[0]}, {axes}, {axes + 1}) for size {sizes}. "
            f"Got {tuple(theta.shape)}."
        )
    if min(sizes) <= 0:
        raise ValueError(f"size: Expected non-zero, positive output size. Got {sizes}")
    base = _base(sizes[2:], align_corners, theta)
    if checks.autocast(theta.device.type) is None:
        flat = matmul(base, theta.transpose(1, 2), contract="ordered")
    else:
        with torch.autocast(theta.device.type, enabled=False):
            flat = matmul(base, theta.transpose(1, 2), contract="ordered")
    return flat.view(sizes[0], *sizes[2:], axes)


def _corners(name: str, align: bool | None) -> bool:
    if align is None:
        warnings.warn(
            f"{name}: align_corners is False where it is not given, since torch 1.3.0; specify it to silence this",
            stacklevel=3,
        )
    return bool(align)


def _base(sizes: list[int], align: bool, theta: Tensor) -> Tensor:
    """(P, A + 1): x, y, ..., 1 of every place, in theta's dtype."""
    lines = []
    for n in sizes:
        numerators = 2 * torch.arange(n, dtype=torch.float64) - (n - 1)
        lines.append(numerators / (max(n - 1, 1) if align else n))
    places = torch.meshgrid(*lines, indexing="ij")
    columns = [p.reshape(-1) for p in reversed(places)]
    base = torch.stack([*columns, torch.ones_like(columns[0])], 1)
    wide = base if theta.dtype == torch.float64 else base.float()
    return wide.to(device=theta.device, dtype=theta.dtype)
