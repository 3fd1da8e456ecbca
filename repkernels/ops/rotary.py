"""Rotary position embeddings (SPEC.md, "Rotary embeddings").

Tables: angle = RN32(position * inv_freq), cos and sin of it correctly rounded, * scaling, one rounding to the dtype.
Rotation, in fp32: y1 = (x1 * cos1) - (x2 * sin1), y2 = (x2 * cos2) + (x1 * sin2), one rounding to x's dtype; x1 and x2
are the halves of the rotated elements, or the even and odd ones. The gradient is the transposed rotation.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.elementwise import rounded
from repkernels.ops.operation import operation
from repkernels.ops.unary import DTYPES

_Two = tuple[Tensor, Tensor]
AXES = 4


def _run_tables(positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype, interleaved: bool) -> _Two:
    cos, sin = _fake_tables(positions, inv_freq, scaling, dtype, interleaved)
    if cos.numel():
        tables = backend("rotary", checks.device_type(positions)).tables
        tables(positions.reshape(-1), inv_freq.contiguous(), rounded(scaling), interleaved, cos, sin)
    return cos, sin


def _fake_tables(positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype, interleaved: bool) -> _Two:
    cos, sin = (positions.new_empty((*positions.shape, 2 * inv_freq.shape[0]), dtype=dtype) for _ in range(2))
    return cos, sin


def _setup_tables(ctx: Any, inputs: tuple[Any, ...], output: _Two) -> None:
    ctx.mark_non_differentiable(*output)


def _backward_tables(ctx: Any, *_: Any) -> tuple[None, None, None, None, None]:
    return None, None, None, None, None


def _vmap_tables(
    info: Any, in_dims: tuple[Any, ...], positions: Tensor, inv_freq: Tensor, *rest: Any
) -> tuple[_Two, tuple[int, int]]:
    batches.refuse("rope_cos_sin", in_dims[1:2])
    return _tables(positions.movedim(in_dims[0], 0), inv_freq, *rest), (0, 0)


_tables = operation("rotary_tables", _run_tables, _fake_tables, _setup_tables, _backward_tables, _vmap_tables)


def rope_cos_sin(
    positions: Tensor,
    inv_freq: Tensor,
    attention_scaling: float = 1.0,
    dtype: torch.dtype = torch.float32,
    *,
    interleaved: bool = False,
) -> _Two:
    """(cos, sin) for `apply_rotary_pos_emb`: those that transformers' rotary embeddings return.

    positions: (...), int32 or int64. inv_freq: (F,) fp32, as `nn.rope_frequencies` gives it. attention_scaling:
    multiplies both, rounded to fp32 once. dtype: of the results, fp32, bf16 or fp16.
    Results: (..., 2 F); the angle of frequency f stands at f and F + f, or, interleaved, at 2f and 2f + 1.

    Bits: SPEC.md, "Rotary embeddings". The angle is RN32(position * inv_freq), as transformers has it for positions
    below 2^24: its own rounding moves it by up to 2^-25 of itself, half an ulp. For larger positions the product is
    still that of the whole position (exact below 2^29, of its binary64 number beyond). cos and sin of that angle are
    correctly rounded, however large it is.
    No gradient. Raises NotImplementedError for dtypes, RuntimeError for shapes and devices that do not fit.
    """
    checks.operand("positions", positions, (torch.int32, torch.int64))
    checks.operand("inv_freq", inv_freq, (torch.float32,))
    scaling = checks.number("attention_scaling", attention_scaling)
    if inv_freq.ndim != 1:
        raise RuntimeError(f"inv_freq: expected one dimension, got shape {tuple(inv_freq.shape)}")
    if inv_freq.device != positions.device:
        raise RuntimeError(f"inv_freq: on {inv_freq.device} but positions are on {positions.device}; move one of them")
    if dtype not in DTYPES:
        raise NotImplementedError(f"dtype: {dtype} is not supported; use one of {', '.join(map(str, DTYPES))}")
    return _tables(positions, inv_freq.detach(), scaling, dtype, interleaved)


def _run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> _Two:
    results = _fake(q, k, cos, sin, interleaved, inverse)
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    pairs = []
    for x, out in zip((q, k), results, strict=True):
        by = [t.expand(*x.shape[:-1], t.shape[-1]) for t in (cos, sin)]
        pairs.append([_four_axes(t) for t in (x if x.stride(-1) == 1 else x.contiguous(), out, *by)])
    backend("rotary", checks.device_type(q)).rotate(*pairs, interleaved, inverse)
    return results


def _four_axes(x: Tensor) -> Tensor:
    return x[(None,) * (AXES - x.ndim)]


def _fake(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> _Two:
    return _like(q), _like(k)


def _like(x: Tensor) -> Tensor:
    """Memory of x's order of axes, the last one innermost."""
    return torch.empty_like(x) if x.stride(-1) == 1 else x.new_empty(x.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Two) -> None:
    _, _, cos, sin, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, q: Tensor, k: Tensor) -> tuple[Any, ...]:
    cos, sin = ctx.saved_tensors
    return (*_rotate(q, k, cos, sin, ctx.interleaved, not ctx.inverse), None, None, None, None)


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return batches.one_by_one(_rotate, info, in_dims, args)


_rotate = operation("rotary", _run, _fake, _setup_context, _backward, _vmap)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, *, interleaved: bool = False
) -> _Two:
    """q and k rotated by the angles of their positions, as transformers' function of this name, in one pass.

    q, k: up to 4 dimensions, fp32, bf16 or fp16, of one dtype, any strides; the last axis is the head's. cos, sin:
    (..., R), of `rope_cos_sin`, q's dtype or another of these; with an axis of size 1 inserted at `unsqueeze_dim` they
    broadcast to q and k. Of a head the first R <= head_dim elements are rotated, the others copied.
    interleaved: elements 2i and 2i + 1 are a pair (GPT-J, Cohere), instead of i and R / 2 + i.
    Results: q's and k's shapes and dtype, laid out in memory as they are.

    Bits: y1 = RN(RN(x1 * cos1) - RN(x2 * sin1)), y2 = RN(RN(x2 * cos2) + RN(x1 * sin2)) in fp32, rounded to the dtype
    once (SPEC.md, "Rotary embeddings"). The gradients of q and k are the transposed rotation, by the same steps, and
    so on for theirs; cos and sin have none.
    Raises RuntimeError for shapes, dtypes or devices that do not fit together, and for cos or sin that require grad.
    """
    checks.operand("q", q, DTYPES)
    checks.operand("k", k, DTYPES)
    checks.same("k", k, "q", q)
    for name, x in (("cos", cos), ("sin", sin)):
        checks.operand(name, x, DTYPES)
        if x.device != q.device:
            raise RuntimeError(f"{name}: on {x.device} but q is on {q.device}; move one of them")
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{name}: has no gradient here; detach it")
    checks.same("sin", sin, "cos", cos)
    if cos.shape != sin.shape:
        raise RuntimeError(f"sin: shape {tuple(sin.shape)} differs from cos's {tuple(cos.shape)}")
    if cos.ndim == 0 or cos.shape[-1] % 2:
        raise RuntimeError(f"cos: expected an even last size, got shape {tuple(cos.shape)}")
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    for name, x in (("q", q), ("k", k)):
        fits = 1 <= x.ndim <= AXES and x.ndim >= cos.ndim and x.shape[-1] >= cos.shape[-1]
        sizes = zip(reversed(cos.shape[:-1]), reversed(x.shape[:-1]), strict=False)
        if not fits or any(n not in (1, m) for n, m in sizes):
            raise RuntimeError(
                f"{name}: shape {tuple(x.shape)} does not fit cos, of shape {tuple(cos.shape)} after unsqueeze_dim="
                f"{unsqueeze_dim}: it must have at most {AXES} dimensions, cos must broadcast to it, and the last size "
                "of cos be at most the head's"
            )
    return _rotate(q, k, cos, sin, interleaved, False)
