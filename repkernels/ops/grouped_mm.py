"""Products of groups of rows with a matrix each, as mixtures of experts need them (SPEC.md, "Grouped products").

A row's result has the bits of the product of that row alone with its group's matrix. Gradients follow the gradient
contract: of the rows the same with the matrices transposed, of a matrix the contraction over its group's rows.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike, resolve
from repkernels.ops import batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.in_force import PAIRS, contract_in_force, mark
from repkernels.ops.operation import operation
from repkernels.prepare import NOTHING_KEPT, Prepared, kept_digits

# `rule` and `gradient` are the contracts of a product and of its gradients; with a token, which compiled code has in
# place of names, they say which of its pair.


def _name(token: Tensor | None, rule: str) -> str:
    return rule if token is None else getattr(PAIRS[int(token)], rule)


def _run(a: Tensor, b: Tensor, offs: Tensor, token: Tensor | None, kept: int, rule: str, gradient: str) -> Tensor:
    kernels, out = backend("grouped_mm", checks.device_type(a)), _fake(a, b, offs, token, kept, rule, gradient)
    contract = _name(token, rule)
    digits = kept_digits(kept, b, contract, kernels.quantize) if kept else None
    kernels.grouped_mm(a, b, offs, out, contract, digits)
    return out


def _fake(a: Tensor, b: Tensor, offs: Tensor, token: Tensor | None, kept: int, rule: str, gradient: str) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[2]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, offs, token, _, rule, ctx.gradient = inputs
    ctx.by_token, ctx.transposed = token is not None, b.stride(1) < b.stride(2)
    for_a, for_b = ctx.needs_input_grad[:2]
    kept = token if ctx.by_token else mark(rule, ctx.gradient)
    ctx.save_for_backward(a if for_b else None, b if for_a else None, offs, kept)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b, offs, token = ctx.saved_tensors
    token, name = token if ctx.by_token else None, ctx.gradient
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = _grouped_mm(grad, b.mT, offs, token, NOTHING_KEPT, name, name)
    if ctx.needs_input_grad[1]:
        if ctx.transposed:  # laid out as b is, so that autograd can take it as a parameter's gradient
            grad_b = _grouped_mm_weight(grad, a, offs, token, name).mT
        else:
            grad_b = _grouped_mm_weight(a, grad, offs, token, name)
    return grad_a, grad_b, None, None, None, None, None


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    tensors = batches.first(info, in_dims[:3], *args[:3])
    return torch.stack([_grouped_mm(*sample, *args[3:]) for sample in zip(*tensors, strict=True)]), 0


_grouped_mm = operation("grouped_mm", _run, _fake, _setup_context, _backward, _vmap)


def _run_weight(a: Tensor, b: Tensor, offs: Tensor, token: Tensor | None, rule: str) -> Tensor:
    out = _fake_weight(a, b, offs, token, rule)
    backend("grouped_mm", checks.device_type(a)).grouped_mm_weight(a, b, offs, out, _name(token, rule))
    return out


def _fake_weight(a: Tensor, b: Tensor, offs: Tensor, token: Tensor | None, rule: str) -> Tensor:
    return a.new_empty((offs.shape[0], a.shape[1], b.shape[1]))


def _setup_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, offs, token, ctx.rule = inputs
    ctx.save_for_backward(a, b, offs, token)


def _backward_weight(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b, offs, token = ctx.saved_tensors
    name, grad_a, grad_b = ctx.rule, None, None
    if ctx.needs_input_grad[0]:
        grad_a = _grouped_mm(b, grad.mT, offs, token, NOTHING_KEPT, name, name)
    if ctx.needs_input_grad[1]:
        grad_b = _grouped_mm(a, grad, offs, token, NOTHING_KEPT, name, name)
    return grad_a, grad_b, None, None, None


def _vmap_weight(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    tensors = batches.first(info, in_dims[:3], *args[:3])
    return torch.stack([_grouped_mm_weight(*sample, *args[3:]) for sample in zip(*tensors, strict=True)]), 0


_grouped_mm_weight = operation(
    "grouped_mm_weight", _run_weight, _fake_weight, _setup_weight, _backward_weight, _vmap_weight
)


def grouped_mm(
    mat_a: Tensor, mat_b: Tensor | Prepared, *, offs: Tensor, contract: ContractLike | None = None
) -> Tensor:
    """Rows offs[g - 1] .. offs[g] - 1 of mat_a times mat_b[g], as torch.nn.functional.grouped_mm.

    mat_a: (T, K). mat_b: (G, K, N), or `prepare(weight)` of weights (G, N, K), which stands for weight.mT. fp32, bf16,
    fp16 or fp64, of one dtype and device, any strides. offs: (G,) int32 on their device, ascending, where each group
    ends; nothing of it is read by the host. Result: (T, N), contiguous; rows from offs[-1] on are +0.

    Bits: row i is `matmul(mat_a[i:i+1], mat_b[g])` under the contract, whatever else is there. Gradients follow the
    gradient contract: of mat_a likewise, of mat_b[g] `matmul` of the group's rows of mat_a, transposed, with those of
    the gradient: +0 of an empty group (SPEC.md, "Grouped products").
    Raises RuntimeError for shapes, dtypes or devices that do not fit together, and as `matmul`. Under `fixedNN` K (for
    gradients T) is limited on a GPU: 2^17 for `fixed32`, 2^25 for `fixed24`.
    """
    kept = NOTHING_KEPT
    if isinstance(mat_b, Prepared):
        kept, contract, mat_b = mat_b.number, mat_b.contract if contract is None else contract, mat_b.weight.mT
    checks.operand("mat_a", mat_a)
    checks.operand("mat_b", mat_b)
    checks.operand("offs", offs, (torch.int32,))
    device_type = checks.device_type(mat_a)
    dtype = checks.autocast(device_type)
    if dtype is not None:
        if mat_b.dtype != dtype:
            kept = NOTHING_KEPT
        mat_a, mat_b = checks.cast(mat_a, dtype), checks.cast(mat_b, dtype)
    checks.same("mat_b", mat_b, "mat_a", mat_a)
    if offs.device != mat_a.device:
        raise RuntimeError(f"offs: on {offs.device} but mat_a is on {mat_a.device}; move one of them")
    if mat_a.ndim != 2 or mat_b.ndim != 3 or mat_a.shape[1] != mat_b.shape[1]:
        raise RuntimeError(
            f"mat_a and mat_b: expected shapes (T, K) and (G, K, N), got {tuple(mat_a.shape)} and {tuple(mat_b.shape)}"
        )
    if offs.shape != mat_b.shape[:1]:
        raise RuntimeError(f"offs: expected shape {tuple(mat_b.shape[:1])}, got {tuple(offs.shape)}")
    offs = offs.contiguous()
    if contract is None and torch.compiler.is_compiling():
        return _grouped_mm(mat_a, mat_b, offs, contract_in_force(mat_a), kept, "forward", "gradient")
    return _grouped_mm(mat_a, mat_b, offs, None, kept, *resolve(contract, mat_a.dtype, device_type))
