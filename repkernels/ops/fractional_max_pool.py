"""Fractional max pooling (Graham 2014; SPEC.md, "Pooling"): windows that begin where samples say, plane by plane."""

from typing import Any

import torch
from torch import Tensor

from repkernels import random
from repkernels.ops import checks
from repkernels.ops import windows as arguments
from repkernels.ops.backend import backend
from repkernels.ops.index_add import gather
from repkernels.ops.max_pool import tap_type
from repkernels.ops.operation import operation
from repkernels.ops.windows import Sizes
from repkernels.windows import Windows, windows

# The sample of each axis, in torch's order: in two dimensions that of the last comes first.
_ORDER = {2: (1, 0), 3: (0, 1, 2)}


def _run(x: Tensor, samples: Tensor, geometry: list[int], dims: int) -> Tensor:
    w = windows(geometry)
    index = _fake(x, samples, geometry, dims)
    if not index.numel():
        return index
    values = x.new_empty(index.shape)
    taps = torch.empty(index.shape, dtype=tap_type(w), device=x.device)
    along = _starts(samples.flatten(0, 1), w, dims)
    starts = torch.cat(along, 1)
    backend("max_pool", checks.device_type(x)).forward(x, starts, values, taps, w)
    t = taps.long()
    number = (t // (w.kernel[1] * w.kernel[2]), t // w.kernel[2] % w.kernel[1], t % w.kernel[2])
    index.zero_()
    for axis, (first, tap) in enumerate(zip(along, number, strict=True)):
        shape = [*x.shape[:2], 1, 1, 1]
        shape[2 + axis] = -1
        index = index * w.size[axis] + first.view(shape) + tap
    return index


def _starts(samples: Tensor, w: Windows, dims: int) -> list[Tensor]:
    """The first position of every window along each axis, int64 (planes, output); samples (planes, dims)."""
    wide = samples if samples.dtype == torch.float64 else samples.float()
    found = [torch.zeros((len(wide), 1), dtype=torch.int64, device=wide.device) for _ in range(3 - dims)]
    for axis in range(3 - dims, 3):
        size, kernel, output = w.size[axis], w.kernel[axis], w.output[axis]
        u = wide[:, _ORDER[dims][axis - 3 + dims], None]
        last = torch.full((len(wide), 1), size - kernel, dtype=torch.int64, device=wide.device)
        if output > 1:
            apart = torch.full_like(u, size - kernel) / torch.full_like(u, output - 1)
            i = torch.arange(output - 1, device=u.device).to(u.dtype)
            last = torch.cat([((i + u) * apart).long() - (u * apart).long(), last], 1)
        found.append(last)
    return found


def _fake(x: Tensor, samples: Tensor, geometry: list[int], dims: int) -> Tensor:
    return torch.empty((*x.shape[:2], *windows(geometry).output), dtype=torch.int64, device=x.device)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)


def _backward(ctx: Any, grad: Any) -> tuple[None, None, None, None]:
    return None, None, None, None


def _vmap(*args: Any) -> Any:
    return arguments.folded(_positions, 2)(*args)


_positions = operation("fractional_max_pool", _run, _fake, _setup_context, _backward, _vmap)


def _fractional(
    name: str, input: Tensor, dims: int, kernel_size: Sizes, output_size: Any, output_ratio: Any,
    return_indices: bool, samples: Tensor | None,
) -> Any:  # fmt: skip
    if output_size is None and output_ratio is None:
        raise ValueError(f"{name}: requires specifying either an output_size or an output_ratio")
    x, batched = arguments.operand(name, input, dims)
    kernel = arguments.numbers("kernel_size", kernel_size, dims, 1)
    size = tuple(x.shape[5 - dims :])
    if output_size is None:
        ratios = tuple(output_ratio) if isinstance(output_ratio, (list, tuple)) else (output_ratio,) * dims
        if len(ratios) != dims:
            raise ValueError(f"output_ratio: expected a number or {dims} of them, got {output_ratio!r}")
        output_size = [int(n * r) for n, r in zip(size, ratios, strict=True)]
    output = arguments.numbers("output_size", output_size, dims, 1)
    for n, k, o in zip(size, kernel, output, strict=True):
        if o + k - 1 > n:
            raise RuntimeError(f"{name}: {o} windows of {k} do not fit into {n}: of input {tuple(input.shape)}")
    shape = (*x.shape[:2], dims)
    if samples is None:
        samples = random.uniform(shape, dtype=x.dtype, device=x.device)
    elif not isinstance(samples, Tensor) or tuple(samples.shape) != shape:
        given = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
        raise RuntimeError(f"_random_samples: expected shape {shape}, got {given}")
    else:
        checks.same("_random_samples", samples, "input", x)
    filled = zip((size, kernel, output), (1, 1, 1), strict=True)
    whole, taps, wanted = (arguments.padded(values, fill) for values, fill in filled)
    w = Windows(whole, taps, (1, 1, 1), (0, 0, 0), (1, 1, 1), wanted, False)
    index = _positions(x.detach(), samples.detach(), w.flat(), dims)
    y = gather(x.flatten(2), 2, index.flatten(2)).unflatten(2, wanted)
    y = arguments.result(y, dims, batched)
    return (y, arguments.result(index, dims, batched)) if return_indices else y


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Max pooling whose windows begin at random steps, torch.nn.functional.fractional_max_pool2d's signature.

    input: (N, C, H, W) or (C, H, W), fp32, bf16, fp16 or fp64, any strides. output_size, or output_ratio times the
    input's, rounded down. _random_samples: (N, C, 2) in [0, 1), N = 1 for (C, H, W); by default the next stream of
    `repkernels.random`, as `uniform` draws it. Result: contiguous; with return_indices a pair, as for `max_pool2d`.

    Bits: SPEC.md, "Pooling". The gradient is the SUM of those of the results that took an element, ascending (SPEC.md,
    "Grouped sums"). Differentiable any number of times. Raises ValueError without output_size and output_ratio,
    RuntimeError for sizes that do not fit.
    """
    return _fractional(
        "fractional_max_pool2d", input, 2, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """`fractional_max_pool2d` of (N, C, D, H, W) or (C, D, H, W); _random_samples (N, C, 3)."""
    return _fractional(
        "fractional_max_pool3d", input, 3, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )
