"""Linear layers with int8 weights (SPEC.md, "int8 weights"): exact integer sums, one scale for each output channel."""

from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike, digits_of, resolve
from repkernels.ops import batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.elementwise import elementwise
from repkernels.ops.in_force import PAIRS, contract_in_force
from repkernels.ops.matmul import _matmul, _matmul_by_token
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum_rows
from repkernels.ops.unary import DTYPES
from repkernels.prepare import NOTHING_KEPT


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(integers, scale): a weight (out_features, in_features) as int8, symmetric, with a scale for each row.

    weight: fp32, bf16 or fp16, finite. Results: int8 of its shape, and fp32 (out_features,).
    Bits: scale = div_rn(MAX |w|, 127), q = rhe(div_rn(w, scale)), moved into -127 .. 127; 0 where the scale is 0
    (SPEC.md, "int8 weights"). |w - q * scale| <= scale / 2 but for roundings.
    Raises RuntimeError for another shape, ValueError for elements that are not finite.
    """
    checks.operand("weight", weight, DTYPES)
    if weight.ndim != 2:
        raise RuntimeError(f"weight: expected (out_features, in_features), got shape {tuple(weight.shape)}")
    wide = weight.detach().float()
    if not bool(wide.isfinite().all()):
        raise ValueError("weight: has elements that are not finite")
    rows = len(wide)
    largest = wide.abs().amax(1) if wide.numel() else wide.new_zeros(rows)
    scale = elementwise("div", largest, s=127.0)
    q = elementwise("div", wide, scale.unsqueeze(1)).round().clamp(-127, 127)
    return torch.where(scale.unsqueeze(1) == 0, 0.0, q).to(torch.int8), scale


def _run(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, token: Tensor | None, forward: str, gradient: str
) -> Tensor:
    out = _fake(x, weight, scale, bias, token, forward, gradient)
    # With a token, which compiled code has in place of names.
    digits = _digits(forward if token is None else PAIRS[int(token)].forward)
    if not out.numel():
        return out
    if not x.shape[1]:
        return out.zero_() if bias is None else out.copy_(torch.where(bias == 0, 0, bias))
    backend("int8_linear", checks.device_type(x)).int8_linear(x, weight, scale, bias, out, digits)
    return out


def _digits(name: str) -> int:
    digits = digits_of(name)
    if not digits:
        raise ValueError(f"contract: int8 weights need digits of the input; use a fixedNN contract, not {name!r}")
    return digits


def _fake(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, token: Tensor | None, forward: str, gradient: str
) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, scale, _, token, _, ctx.gradient = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(weight, scale, token)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    weight, scale, token = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        wide = elementwise("product", weight.float(), scale.unsqueeze(1)).to(ctx.dtype)
        if token is None:
            grad_x = _matmul(grad, wide, None, NOTHING_KEPT, ctx.gradient, ctx.gradient)
        else:
            grad_x = _matmul_by_token(grad, wide, None, NOTHING_KEPT, token, True)
    if ctx.needs_input_grad[3]:
        grad_bias = sum_rows(grad)
    return grad_x, None, None, grad_bias, None, None, None


def _vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    batches.refuse("int8_linear", in_dims[1:5])
    x = x.movedim(in_dims[0], 0)
    return _int8_linear(x.reshape(-1, x.shape[-1]), *rest).view(*x.shape[:-1], -1), 0


_int8_linear = operation("int8_linear", _run, _fake, _setup_context, _backward, _vmap)


def int8_linear(
    input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, *, contract: ContractLike | None = None
) -> Tensor:
    """input @ (weight * scale)^T + bias, from an exact integer sum.

    input: (..., in_features), fp32, bf16 or fp16. weight: (out_features, in_features) int8 and scale: (out_features,)
    fp32, as `quantize_int8` makes them. bias: (out_features,) in input's dtype. contract: a `fixedNN`, which says how
    many digits the rows of input get: half as many products as with a weight of 16 bits under `fixed16`.
    Result: (..., out_features) in input's dtype.

    Bits: with the row's exponent e and integers q, r = ldexp(RN32(sum of q_k * weight_k), e), exact before that
    rounding; RN(r * scale), + bias, one rounding to the dtype, zeros as +0 (SPEC.md, "int8 weights"). A row's depend on
    nothing else. Gradients: of input the matmul with RN(weight * scale), rounded to the dtype, under the gradient
    contract; of bias the SUM over the rows; weight and scale have none.
    Raises ValueError for a contract without digits, RuntimeError for shapes, dtypes or devices that do not fit.
    """
    checks.operand("input", input, DTYPES)
    checks.operand("weight", weight, (torch.int8,))
    checks.operand("scale", scale, (torch.float32,))
    device_type = checks.device_type(input)
    dtype = checks.autocast(device_type)
    if dtype is not None:
        input, bias = checks.cast(input, dtype), None if bias is None else checks.cast(bias, dtype)
    if weight.ndim != 2 or input.ndim == 0 or input.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"input and weight: shapes {tuple(input.shape)} and {tuple(weight.shape)} do not fit: the last size of "
            "input must equal the last size of weight, in_features"
        )
    for name, x in (("scale", scale), ("bias", bias)):
        if x is not None and x.shape != weight.shape[:1]:
            raise RuntimeError(f"{name}: expected shape {tuple(weight.shape[:1])}, got {tuple(x.shape)}")
    if bias is not None:
        checks.operand("bias", bias, DTYPES)
        checks.same("bias", bias, "input", input)
    for name, x in (("weight", weight), ("scale", scale)):
        if x.device != input.device:
            raise RuntimeError(f"{name}: on {x.device} but input is on {input.device}; move one of them")
    rows = input.flatten(0, -2) if input.ndim > 1 else input.unsqueeze(0)
    if contract is None and torch.compiler.is_compiling():
        y = _int8_linear(rows, weight, scale, bias, contract_in_force(rows), "", "")
    else:
        pair = resolve(contract, input.dtype, device_type)
        _digits(pair.forward)
        y = _int8_linear(rows, weight, scale, bias, None, *pair)
    return y.view(*input.shape[:-1], weight.shape[0])
