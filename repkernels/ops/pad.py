"""Padding (SPEC.md, "Resampling"): copies; an input position's gradient is the sum of those of its copies."""

from collections.abc import Sequence

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.resample import resample

MODES = ("constant", "reflect", "replicate", "circular")


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`input` with `pad` = (left, right) of the last axis, then of the one before, ...: torch.nn.functional.pad.

    mode "constant": any axes, `value` (0) around. "reflect", "replicate", "circular": the last one to three axes of
    (C, ...) or (N, C, ...); negative numbers cut off. Floating dtypes, and what torch has of the others. Result: a copy
    in torch's memory format. Bits of the gradient: SPEC.md, "Resampling": copies of one position are added one after
    another in ascending output position, along the last axis first, without atomic operations. Differentiable any
    number of times.
    Raises NotImplementedError for an unknown mode or number of dimensions, RuntimeError for an odd `pad`, one that is
    too large, or a value beside another mode than "constant".
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"input: expected a Tensor, got {type(input).__name__}")
    pads = [int(p) for p in pad]
    if len(pads) % 2:
        raise RuntimeError(f"pad: expected an even number of sizes, (left, right) of each axis, got {len(pads)}")
    if len(pads) > 2 * input.ndim:
        raise RuntimeError(f"pad: {len(pads)} sizes for {input.ndim} dimensions; two at most for each")
    if mode == "constant":
        return torch.nn.functional.pad(input, pads, mode, value)  # moves only, in both directions
    if value is not None and value != 0:
        raise RuntimeError(f"value: padding mode {mode!r} takes no value, got {value}")
    if mode not in MODES:
        raise NotImplementedError(f"mode: Unrecognised padding mode {mode}; use one of {', '.join(MODES)}")
    axes = len(pads) // 2
    if not 1 <= axes <= 3 or input.ndim not in (axes + 1, axes + 2):
        raise NotImplementedError(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: pad has "
            f"{len(pads)} sizes, so input needs {axes + 1} or {axes + 2} dimensions, not {input.ndim}"
        )
    if not input.is_floating_point():
        checks.operand("input", input, (*checks.FLOATS, *reduce.INTEGERS))
        return torch.nn.functional.pad(input, pads, mode)
    checks.operand("input", input)
    sides = [(pads[2 * d], pads[2 * d + 1]) for d in reversed(range(axes))]
    sizes = list(input.shape[-axes:])
    outputs = [_size(mode, d - axes, n, *side) for d, (n, side) in enumerate(zip(sizes, sides, strict=True))]
    if 0 in input.shape[1 if input.ndim == axes + 2 else 0 :]:
        raise RuntimeError(f"input: only the batch may be empty, got shape {tuple(input.shape)}")
    x = input if input.ndim == axes + 2 else input[None]
    y = resample(x, mode, outputs, sides)
    return y if input.ndim == axes + 2 else y[0]


def _size(mode: str, dim: int, n: int, left: int, right: int) -> int:
    most = max(left, right)
    if mode == "reflect" and most >= n:
        raise RuntimeError(
            f"pad: Padding size should be less than the corresponding input dimension, but got: padding ({left}, "
            f"{right}) at dimension {dim} of input of size {n}"
        )
    if mode == "circular" and most > n:
        raise RuntimeError(f"pad: Padding value causes wrapping around more than once: ({left}, {right}) for size {n}")
    if n + left + right < 1:
        raise RuntimeError(f"pad: ({left}, {right}) leaves nothing of dimension {dim} of size {n}")
    return n + left + right
