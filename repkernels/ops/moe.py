"""Mixtures of experts (SPEC.md, "Mixtures of experts"): routing, grouped products, the sum of each token's experts.

A token's result depends on its own row alone: softmax and top-k are its own, ties go to the lowest expert, products are
those of single rows, and its experts are added in the order of its slots.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike
from repkernels.ops import batches, checks, plain
from repkernels.ops.backend import backend
from repkernels.ops.elementwise import elementwise
from repkernels.ops.gated import geglu, swiglu
from repkernels.ops.grouped_mm import grouped_mm
from repkernels.ops.grouped_sum import groups
from repkernels.ops.index_add import gather
from repkernels.ops.operation import operation
from repkernels.ops.softmax import _gradient as softmax_gradient
from repkernels.ops.softmax import softmax
from repkernels.ops.sort import _place, topk
from repkernels.ops.sum import sum as summed
from repkernels.ops.unary import DTYPES
from repkernels.prepare import Prepared

_Three = tuple[Tensor, Tensor, Tensor]
ACTIVATIONS = {
    "silu": swiglu,
    "swish": swiglu,
    "gelu": geglu,
    "gelu_tanh": lambda x: geglu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: geglu(x, approximate="tanh"),
}


def _run_groups(index: Tensor, experts: int) -> _Three:
    order, inverse, offs = _fake_groups(index, experts)
    flat = index.reshape(-1)
    flat = torch.where((flat < 0) | (flat >= experts), experts, flat)
    if not len(flat):
        return order, inverse, offs.zero_()
    if not backend("moe", checks.device_type(index)).groups(flat, experts, order, inverse, offs):
        order, starts = groups(flat, experts)
        inverse[order] = torch.arange(len(order), device=order.device)
        offs.copy_(starts[1:])
    return order, inverse, offs


def _fake_groups(index: Tensor, experts: int) -> _Three:
    order, inverse = (index.new_empty((index.numel(),), dtype=torch.int64) for _ in range(2))
    return order, inverse, index.new_empty((experts,), dtype=torch.int32)


def _setup_groups(ctx: Any, inputs: tuple[Any, ...], output: _Three) -> None:
    ctx.mark_non_differentiable(*output)


def _backward_groups(ctx: Any, *_: Any) -> tuple[None, None]:
    return None, None


def _vmap_groups(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return batches.one_by_one(_groups, info, in_dims, args)


_groups = operation("moe_groups", _run_groups, _fake_groups, _setup_groups, _backward_groups, _vmap_groups)


def _run_rows(x: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:
    out = _fake_rows(x, order, inverse, k)
    if out.numel():
        x = x if x.stride(1) == 1 else x.contiguous()
        backend("moe", checks.device_type(x)).rows(x, order, k, out)
    return out


def _fake_rows(x: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:
    return x.new_empty((order.shape[0], x.shape[1]))


def _setup_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, order, inverse, ctx.k = inputs
    ctx.save_for_backward(order, inverse)


def _backward_rows(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _combine(grad, None, *ctx.saved_tensors, ctx.k), None, None, None


def _vmap_rows(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    tensors = batches.first(info, in_dims[:3], *args[:3])
    return torch.stack([_rows(*sample, args[3]) for sample in zip(*tensors, strict=True)]), 0


_rows = operation("moe_rows", _run_rows, _fake_rows, _setup_rows, _backward_rows, _vmap_rows)


def _run_combine(x: Tensor, weights: Tensor | None, order: Tensor, inverse: Tensor, k: int) -> Tensor:
    out = _fake_combine(x, weights, order, inverse, k)
    if out.numel():
        x = x if x.stride(1) == 1 else x.contiguous()
        weights = None if weights is None else weights.contiguous()
        backend("moe", checks.device_type(x)).combine(x, weights, inverse, k, out)
    return out


def _fake_combine(x: Tensor, weights: Tensor | None, order: Tensor, inverse: Tensor, k: int) -> Tensor:
    return x.new_empty((order.shape[0] // k, x.shape[1]))


def _setup_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, order, inverse, ctx.k = inputs
    ctx.save_for_backward(x, weights, order, inverse)


def _backward_combine(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weights, order, inverse = ctx.saved_tensors
    rows = _rows(grad, order, inverse, ctx.k)
    if weights is None:
        return rows, None, None, None, None
    grad_x = grad_weights = None
    wide = rows.float()
    if ctx.needs_input_grad[0]:
        by = weights.reshape(-1).float()[order].unsqueeze(1)
        grad_x = plain.multiply(wide, by).to(x.dtype)
    if ctx.needs_input_grad[1]:
        terms = summed(plain.multiply(wide, x.float()), -1)
        grad_weights = terms[inverse].view(weights.shape).to(weights.dtype)
    return grad_x, grad_weights, None, None, None


def _vmap_combine(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    tensors = batches.first(info, in_dims[:4], *args[:4])
    return torch.stack([_combine(*sample, args[4]) for sample in zip(*tensors, strict=True)]), 0


_combine = operation("moe_combine", _run_combine, _fake_combine, _setup_combine, _backward_combine, _vmap_combine)


def _run_router(logits: Tensor, k: int, norm: bool) -> tuple[Tensor, Tensor]:
    weights, index = _fake_router(logits, k, norm)
    rows = logits if logits.stride(1) == 1 else logits.contiguous()
    if len(logits) and backend("moe", checks.device_type(logits)).router(rows, norm, weights, index):
        return weights, index
    return _composed_router(logits, k, norm)


def _fake_router(logits: Tensor, k: int, norm: bool) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int64)


def _composed_router(logits: Tensor, k: int, norm: bool) -> tuple[Tensor, Tensor]:
    weights, index = topk(softmax(logits, -1, dtype=torch.float32), k)
    if norm:
        weights = elementwise("div", weights, summed(weights, -1, True))
    return weights, index


def _setup_router(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, _, ctx.norm = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, output[1])


def _backward_router(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    """The gradients of div, sum, topk and softmax, one after another."""
    logits, index = ctx.saved_tensors
    p = softmax(logits, -1, dtype=torch.float32)
    if ctx.norm:
        v = gather(p, 1, index)
        total = summed(v, -1, True)
        of_total = summed(elementwise("div_gradient", grad, v, total), -1, True)
        grad = plain.add(elementwise("div", grad, total), of_total)
    placed = _place(grad, index, 1, logits.shape[1])
    return softmax_gradient(placed, p, False).to(logits.dtype), None, None


def _vmap_router(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return batches.one_by_one(_router, info, in_dims, args)


_router = operation("topk_router", _run_router, _fake_router, _setup_router, _backward_router, _vmap_router)


def topk_router(logits: Tensor, k: int, norm_topk_prob: bool = True) -> tuple[Tensor, Tensor]:
    """(weights, experts): the k experts of each row of router logits with the largest probabilities, in that order.

    logits: (..., experts), fp32, bf16 or fp16. Results: (..., k), fp32 and int64. norm_topk_prob: the weights are
    divided by their SUM; otherwise they are the probabilities.
    Bits: softmax in fp32, topk (of equal probabilities the lower expert), div_rn(w, SUM w), as those functions have
    them (SPEC.md, "Mixtures of experts"); a row's depend on nothing else. Gradients are theirs too.
    Raises RuntimeError for a k that is not in 1 .. experts, NotImplementedError for other dtypes.
    """
    checks.operand("logits", logits, DTYPES)
    if logits.ndim == 0 or not 1 <= k <= logits.shape[-1]:
        raise RuntimeError(f"k: expected 1 <= k <= the number of experts, got {k} for logits {tuple(logits.shape)}")
    weights, index = _router(logits.reshape(-1, logits.shape[-1]), k, norm_topk_prob)
    return weights.view(*logits.shape[:-1], k), index.view(*logits.shape[:-1], k)


def moe(
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    gate_up_proj: Tensor | Prepared,
    down_proj: Tensor | Prepared,
    activation: str = "silu",
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """The experts of transformers' mixtures: for each token the sum of w * down(act(gate) * up) over its k experts.

    hidden_states: (..., H), fp32, bf16 or fp16. top_k_index: (..., k) int32 or int64, top_k_weights: (..., k) of any of
    these dtypes, as `topk_router` returns them; an index outside 0 .. E - 1 stands for an expert that gives +0.
    gate_up_proj: (E, 2 * I, H), the gate's rows first. down_proj: (E, H, I). Both of hidden_states' dtype, or
    `prepare` of such weights. activation: "silu", "gelu" or "gelu_tanh" (and their names in transformers).
    Result: hidden_states' shape and dtype.

    Bits: `grouped_mm`, `swiglu` (`geglu`), `grouped_mm`, each stored in the dtype, under one contract; then
    RN(w * row) in fp32 added in the order of the slots, rounded once (SPEC.md, "Mixtures of experts"). So a token's
    result depends on its own row, index and weights alone. Nothing is read by the host. Differentiable.
    Raises RuntimeError for shapes, dtypes or devices that do not fit, ValueError for an unknown activation.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: unknown {activation!r}; choose one of {', '.join(ACTIVATIONS)}")
    checks.operand("hidden_states", hidden_states, DTYPES)
    checks.operand("top_k_index", top_k_index, (torch.int64, torch.int32))
    checks.operand("top_k_weights", top_k_weights, DTYPES)
    gate_up, down = (w.weight if isinstance(w, Prepared) else w for w in (gate_up_proj, down_proj))
    for name, weight in (("gate_up_proj", gate_up), ("down_proj", down)):
        checks.operand(name, weight, DTYPES)
        checks.same(name, weight, "hidden_states", hidden_states)
    shape = hidden_states.shape
    if hidden_states.ndim == 0 or gate_up.ndim != 3 or gate_up.shape[2] != shape[-1] or gate_up.shape[1] % 2:
        raise RuntimeError(
            f"gate_up_proj: expected (experts, 2 * I, {shape[-1] if shape else 'H'}), got {tuple(gate_up.shape)}"
        )
    if down.shape != (gate_up.shape[0], shape[-1], gate_up.shape[1] // 2):
        wanted = (gate_up.shape[0], shape[-1], gate_up.shape[1] // 2)
        raise RuntimeError(f"down_proj: expected {wanted} beside gate_up_proj, got {tuple(down.shape)}")
    for name, x in (("top_k_index", top_k_index), ("top_k_weights", top_k_weights)):
        if x.ndim == 0 or x.shape != (*shape[:-1], top_k_index.shape[-1]) or x.shape[-1] == 0:
            raise RuntimeError(f"{name}: expected {(*shape[:-1], 'k')} beside hidden_states, got {tuple(x.shape)}")
        if x.device != hidden_states.device:
            raise RuntimeError(f"{name}: on {x.device} but hidden_states is on {hidden_states.device}; move one")
    k = top_k_index.shape[-1]
    order, inverse, offs = _groups(top_k_index, gate_up.shape[0])
    rows = _rows(hidden_states.reshape(-1, shape[-1]), order, inverse, k)
    mixed = _product(rows, gate_up_proj, offs, contract)
    out = _product(ACTIVATIONS[activation](mixed), down_proj, offs, contract)
    return _combine(out, top_k_weights.reshape(-1, k), order, inverse, k).view(shape)


def _product(x: Tensor, weight: Tensor | Prepared, offs: Tensor, contract: ContractLike | None) -> Tensor:
    return grouped_mm(x, weight if isinstance(weight, Prepared) else weight.mT, offs=offs, contract=contract)
