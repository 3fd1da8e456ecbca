"""Linear maps that work along each axis for itself (SPEC.md, "Resampling"): resizing, padding, windows, and back.

Each output element is a chain of fma over its taps along the last axis, of these along the axis before, and so on. The
gradient is the transposed map, by the same kernels: an input gathers from the outputs that read it, ascending.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.taps import taps

OPTIONS = 4
PADS = ("reflect", "replicate", "circular")


def _run(x: Tensor, rule: str, inputs: list[int], outputs: list[int], options: list[float], transposed: bool) -> Tensor:
    if rule in PADS and not transposed:
        return _padded(x, rule, options)
    out = _result(x, inputs, outputs, transposed)
    if not out.numel():
        return out
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    tables = [
        taps(rule, n, m, tuple(options[OPTIONS * d : OPTIONS * (d + 1)]), transposed, wide, x.device)
        for d, (n, m) in enumerate(zip(inputs, outputs, strict=True))
    ]
    missing = 3 - len(inputs)
    five = [t.view(*t.shape[:2], *[1] * missing, *t.shape[2:]) if missing else t for t in (x, out)]
    backend("resample", x.device.type).resample(*five, [None] * missing + tables)
    return out


def _padded(x: Tensor, mode: str, options: Sequence[float]) -> Tensor:
    """Copies alone, by torch: left and right of each axis, of which torch wants the last one first."""
    pads = [int(v) for d in reversed(range(x.ndim - 2)) for v in options[OPTIONS * d : OPTIONS * d + 2]]
    return torch.nn.functional.pad(x, pads, mode).contiguous(memory_format=memory_format(x))


def _result(x: Tensor, inputs: Sequence[int], outputs: Sequence[int], transposed: bool) -> Tensor:
    shape = (*x.shape[:2], *(inputs if transposed else outputs))
    return x.new_empty(shape).contiguous(memory_format=memory_format(x))


def memory_format(x: Tensor) -> torch.memory_format:
    """channels_last of a tensor that lies so and not row-major as well, as torch chooses it."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        return last
    return torch.contiguous_format


def _fake(
    x: Tensor, rule: str, inputs: list[int], outputs: list[int], options: list[float], transposed: bool
) -> Tensor:
    return _result(x, inputs, outputs, transposed)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.rule, ctx.inputs, ctx.outputs, ctx.options, ctx.transposed = inputs


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _resample(grad, ctx.rule, ctx.inputs, ctx.outputs, ctx.options, not ctx.transposed), *[None] * 5


def _vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    x = x.movedim(in_dims[0], 0)
    out = _resample(x.reshape(-1, *x.shape[2:]), *rest)
    return out.view(info.batch_size, x.shape[1], *out.shape[1:]), 0


_resample = operation("resample", _run, _fake, _setup_context, _backward, _vmap)


def resample(
    x: Tensor, rule: str, outputs: Sequence[int], options: Sequence[Sequence[float]], transposed: bool = False
) -> Tensor:
    """x (N, C, axes...) by `rule` (ops/taps.py) along one to three axes -> (N, C, outputs...), rounded once.

    options: up to four numbers for each axis. transposed: the map's transpose; `outputs` are still the sizes of the
    result, what the map reads. Differentiable any number of times.
    """
    sizes = list(x.shape[2:])
    flat = [float(v) for each in options for v in (*each, *[0.0] * (OPTIONS - len(each)))]
    inputs, results = (list(outputs), sizes) if transposed else (sizes, list(outputs))
    return _resample(x, rule, inputs, results, flat, transposed)
