"""Dropout and its kin (SPEC.md, "Dropout"): masks by seed, stream and element index.

The forward pass saves the draw's seed and stream, 16 bytes, and the gradient makes the same mask of them again.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from repkernels import generator as streams
from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.random import check_capture

# Minus the limit of SELU at -infinity: its scale times its alpha.
_ALPHA = 1.7580993408473766


def _run(x: Tensor, key: Tensor, threshold: int, scale: float, shift: float, dropped: float, inner: int) -> Tensor:
    check_capture(x.device)
    kernels = backend("dropout", x.device.type)
    out = kernels.dropout(x.contiguous(), *streams.numbers(key), threshold, scale, shift, dropped, inner)
    return out if x.is_contiguous() else torch.empty_like(x).copy_(out)


def _fake(x: Tensor, key: Tensor, threshold: int, scale: float, shift: float, dropped: float, inner: int) -> Tensor:
    return torch.empty_like(x)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, key, ctx.threshold, ctx.scale, _, _, ctx.inner = inputs
    ctx.save_for_backward(key)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (key,) = ctx.saved_tensors
    return _dropout(grad, key, ctx.threshold, ctx.scale, 0.0, 0.0, ctx.inner), None, None, None, None, None, None


def _vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, int]:
    # A batch of keys has a mask for each; one key has one for all, as gradients of one mask have.
    x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
    each = key.movedim(in_dims[1], 0) if in_dims[1] is not None else [key] * info.batch_size
    return torch.stack([_dropout(a, b, *rest) for a, b in zip(x, each, strict=True)]), 0


def _run_key(x: Tensor) -> Tensor:
    streams.refuse_in_backward()
    return streams.key(*streams.default().next_stream())


def _fake_key(x: Tensor) -> Tensor:
    return torch.empty((2,), dtype=torch.int64)


def _setup_key(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)


def _backward_key(ctx: Any, grad: Tensor) -> None:
    return None


def _vmap_key(info: Any, in_dims: tuple[Any, ...], x: Tensor) -> tuple[Tensor, int | None]:
    if info.randomness == "error":
        raise RuntimeError(
            "vmap: dropout draws a mask, and vmap was not told which; pass randomness='different' or 'same' to vmap"
        )
    if info.randomness == "same":
        return _run_key(x), None
    return torch.stack([_run_key(x) for _ in range(info.batch_size)]), 0


_dropout = operation("dropout", _run, _fake, _setup_context, _backward, _vmap)
_key = operation("dropout_key", _run_key, _fake_key, _setup_key, _backward_key, _vmap_key)


def _masked(input: Tensor, p: float, inplace: bool, scale: float, shift: float, dropped: float, inner: int) -> Tensor:
    checks.operand("input", input)
    traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    key = streams.traced(input) if traced else _key(input.detach())
    # A float between 0 and 1 times 2^32: exact.
    out = _dropout(input, key, int((1 - p) * 2.0**32), scale, shift, dropped, inner)
    return input.copy_(out) if inplace else out


def _check(input: Tensor, p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability between 0 and 1, got {p}")
    if not isinstance(input, Tensor):
        raise TypeError(f"input: expected a Tensor, got {type(input).__name__}")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Sets elements to +0 with probability p and scales the others, torch.nn.functional.dropout's signature.

    input: any shape, fp32, bf16, fp16 or fp64. Element i (row-major) stays iff word i of the next stream of the
    process's generator is below floor((1 - p) * 2^32): y = RN(x * RN32(1 / (1 - p))), else +0, also for infinities and
    NaN. Every call with training=True takes one stream, whatever p and the shape; training=False returns `input`.

    The gradient is the same function of the same mask, which is made again from seed and stream. In a checkpoint use
    `repkernels.checkpoint_contexts`. Raises ValueError for p outside of [0, 1], RuntimeError under vmap with
    randomness="error", in a checkpoint's second run without those contexts, and while a CUDA graph is captured.
    """
    _check(input, p)
    return _masked(input, p, inplace, _scale(p), 0.0, 0.0, 1) if training else input


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`dropout` that keeps mean and variance after SELU, torch.nn.functional.alpha_dropout's signature.

    y = RN(RN(x * RN32(a)) + RN32(s * a * p)) where the element stays, else RN32(s * a * p - s * a), with s =
    1.7580993408473766 and a = 1 / sqrt((s * s * p + 1) * (1 - p)) in binary64; p = 1 gives +0 everywhere.
    """
    _check(input, p)
    return _masked(input, p, inplace, *_alpha(p), 1) if training else input


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels: of input (N, C, ...) elements with one n and c share word n * C + c."""
    _check(input, p)
    inner = _inner(input)
    return _masked(input, p, inplace, *_alpha(p), inner) if training else input


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, L) or (C, L): elements with one n and c share word n * C + c."""
    _check(input, p)
    if input.ndim not in (2, 3):
        raise RuntimeError(f"input: dropout1d expects 2 or 3 dimensions, got shape {tuple(input.shape)}")
    return _channels(input, p, training, inplace, batched=input.ndim == 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, H, W); (N, C, L) as torch takes it, with its warning."""
    _check(input, p)
    if input.ndim == 3:
        warnings.warn("dropout2d: a 3-D input is taken as (N, C, L), as torch does; use dropout1d", stacklevel=2)
    elif input.ndim != 4:
        warnings.warn(f"dropout2d: a {input.ndim}-D input is deprecated in torch; use dropout", stacklevel=2)
    return _channels(input, p, training, inplace, batched=True)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    _check(input, p)
    if input.ndim not in (4, 5):
        warnings.warn(f"dropout3d: a {input.ndim}-D input is deprecated in torch; use dropout", stacklevel=2)
    return _channels(input, p, training, inplace, batched=input.ndim == 5)


def _channels(input: Tensor, p: float, training: bool, inplace: bool, batched: bool) -> Tensor:
    if not training:
        return input
    inner = _inner(input) if batched else math.prod(input.shape[1:])
    return _masked(input, p, inplace, _scale(p), 0.0, 0.0, inner)


def _inner(input: Tensor) -> int:
    if input.ndim < 2:
        raise RuntimeError(f"input: expected 2 dimensions (N, C) or more, got shape {tuple(input.shape)}")
    return math.prod(input.shape[2:])


def _scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


def _alpha(p: float) -> tuple[float, float, float]:
    """Scale, shift and the value of what is dropped."""
    if p == 1:
        return 0.0, 0.0, 0.0
    a = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    return a, _ALPHA * a * p, _ALPHA * a * p - _ALPHA * a
