"""Matrix products (SPEC.md, "matmul and linear").

r = the contraction over k by the contract's rule, in binary32 (fp64: binary64); + bias, widened, one addition;
one rounding to the operands' dtype; a zero is stored as +0. Gradients are contractions under the gradient contract;
where an operand was broadcast, the broadcast batch axes and the contracted one are one k, batch outermost, row-major.
The gradient of the bias is SUM over all leading axes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike, resolve
from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.in_force import PAIRS, contract_in_force, mark
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum_rows
from repkernels.prepare import NOTHING_KEPT, Prepared, kept_digits

_Product = Callable[[Tensor, Tensor], Tensor]


def _run(a: Tensor, b: Tensor, bias: Tensor | None, kept: int, forward: str, gradient: str) -> Tensor:
    kernels = backend("matmul", checks.device_type(a))
    digits = kept_digits(kept, b, forward, kernels.quantize) if kept else None
    if a.ndim == 2 and b.ndim == 2:
        return kernels.matmul(a[None], b[None], bias, forward, digits)[0]
    shape = _result_shape(a, b)
    if 0 in shape:
        return a.new_empty(shape)
    left, right = _three_axes(a, b, shape[:-2])
    return kernels.matmul(left, right, bias, forward, digits).view(shape)


def _result_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    if b.ndim == 2:
        return (*a.shape[:-1], b.shape[-1])
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def _three_axes(a: Tensor, b: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """a and b with one batch axis, of size 1 where an operand is a single matrix; views where the strides allow it."""
    a_count, b_count = math.prod(a.shape[:-2]), math.prod(b.shape[:-2])
    if a_count > 1 and b_count > 1:
        a, b = a.expand(*batch, -1, -1), b.expand(*batch, -1, -1)
        a_count = b_count = math.prod(batch)
    elif a_count > 1:  # rows do not know of each other, and one tall product is faster than many
        try:
            return a.view(1, a_count * a.shape[-2], a.shape[-1]), b.reshape(1, *b.shape[-2:])
        except RuntimeError:
            pass
    return a.reshape(a_count, *a.shape[-2:]), b.reshape(b_count, *b.shape[-2:])


def _fake(a: Tensor, b: Tensor, bias: Tensor | None, kept: int, forward: str, gradient: str) -> Tensor:
    return a.new_empty(_result_shape(a, b))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, _, _, forward, gradient = inputs
    ctx.gradient = gradient
    _save(ctx, a, b, mark(forward, gradient))


def _save(ctx: Any, a: Tensor, b: Tensor, rule: Tensor | None) -> None:
    """Saves what the gradients asked for will read, and the mark or token of the contract."""
    ctx.shapes = a.shape, b.shape
    ctx.column_major = _column_major(a), _column_major(b)
    for_a, for_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if for_b else None, b if for_a else None, rule)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    name = ctx.gradient
    return (*_gradients(ctx, grad, lambda x, y: _matmul(x, y, None, NOTHING_KEPT, name, name)), None, None, None)


def _gradients(ctx: Any, grad: Tensor, product: _Product) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of a, b and bias from that of the result (..., M, N); None where none is asked for."""
    a, b, _ = ctx.saved_tensors
    a_shape, b_shape = ctx.shapes
    a_columns, b_columns = ctx.column_major
    for_a, for_b, for_bias = ctx.needs_input_grad[:3]
    grad_a = grad_b = grad_bias = None
    if for_a:
        grad_a = _left_gradient(grad, b, a_shape, a_columns, product)
    if for_b:  # the result's transpose is b^T @ a^T, whose left operand is b^T
        transposed = (*b_shape[:-2], b_shape[-1], b_shape[-2])
        grad_b = _left_gradient(grad.mT, a.mT, transposed, not b_columns, product).mT
    if for_bias:
        grad_bias = sum_rows(grad.reshape(-1, grad.shape[-1]))
    return grad_a, grad_b, grad_bias


def _left_gradient(grad: Tensor, b: Tensor, shape: Sequence[int], column_major: bool, product: _Product) -> Tensor:
    """grad (..., M, N) contracted with b (..., K, N) over n, and over the batch axes along which a was broadcast.

    shape: a's, (..., M, K), which the result has. column_major: lays the result out by columns, as a is, so that
    autograd can take it as the `.grad` of a parameter; the product of the transposes has the same bits.
    """
    axes = grad.ndim - 2
    kept_sizes = (1,) * (axes - len(shape) + 2) + tuple(shape[:-2])
    summed = [i for i in range(axes) if kept_sizes[i] == 1 and grad.shape[i] != 1]
    right = b.mT
    if summed:
        kept = [i for i in range(axes) if i not in summed]
        b = b.reshape((1,) * (axes - b.ndim + 2) + tuple(b.shape))
        terms = math.prod(grad.shape[i] for i in summed) * grad.shape[-1]
        left = grad.permute(*kept, axes, *summed, axes + 1)
        grad = left.reshape(*(grad.shape[i] for i in kept), grad.shape[-2], terms)
        right = b.permute(*kept, *summed, axes + 1, axes).reshape(*(b.shape[i] for i in kept), terms, b.shape[-2])
    result = product(right.mT, grad.mT).mT if column_major else product(grad, right)
    return result.reshape(shape)


def _column_major(x: Tensor) -> bool:
    return x.stride(-2) == 1 and x.stride(-1) != 1


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return _batched(_matmul, info.batch_size, in_dims, args), 0


def _batched(call: Callable[..., Any], size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """`call` with the axis that vmap adds as the outermost batch axis, of the operands and of the result."""
    a, b, *rest = args
    if rest and in_dims[2] is not None:
        bias = rest[0].movedim(in_dims[2], 0)
        results = [
            call(
                a if in_dims[0] is None else a.select(in_dims[0], i),
                b if in_dims[1] is None else b.select(in_dims[1], i),
                bias[i],
                *rest[1:],
            )
            for i in range(size)
        ]
        return torch.stack(results)
    a, b = (x if d is None else x.movedim(d, 0) for x, d in zip((a, b), in_dims[:2], strict=True))
    axes = max(a.ndim - (in_dims[0] is not None), b.ndim - (in_dims[1] is not None))
    a, b = (
        x if d is None else x.reshape(size, *(1,) * (axes + 1 - x.ndim), *x.shape[1:])
        for x, d in zip((a, b), in_dims[:2], strict=True)
    )
    return call(a, b, *rest)


_matmul = operation("matmul", _run, _fake, _setup_context, _backward, _vmap)


def _run_by_token(a: Tensor, b: Tensor, bias: Tensor | None, kept: int, token: Tensor, in_gradient: bool) -> Tensor:
    forward, gradient = PAIRS[int(token)]
    return _run(a, b, bias, kept, gradient if in_gradient else forward, gradient)


def _fake_by_token(a: Tensor, b: Tensor, bias: Tensor | None, kept: int, token: Tensor, in_gradient: bool) -> Tensor:
    return a.new_empty(_result_shape(a, b))


def _setup_by_token(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, _, _, token, _ = inputs
    _save(ctx, a, b, token)


def _backward_by_token(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    token = ctx.saved_tensors[2]
    gradients = _gradients(ctx, grad, lambda x, y: _matmul_by_token(x, y, None, NOTHING_KEPT, token, True))
    return (*gradients, None, None, None)


def _vmap_by_token(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return _batched(_matmul_by_token, info.batch_size, in_dims, args), 0


_matmul_by_token = operation(
    "matmul_by_token", _run_by_token, _fake_by_token, _setup_by_token, _backward_by_token, _vmap_by_token
)


def matmul(
    a: Tensor, b: Tensor | Prepared, *, bias: Tensor | None = None, contract: ContractLike | None = None
) -> Tensor:
    """a @ b + bias, with bits that depend on the operands and the contract alone.

    a: (..., M, K) or (K,). b: (..., K, N) or (K,), or `prepare(weight)` of a weight (N, K), which stands for weight.T.
    bias: (N,), or () where b is 1-D. Batch axes broadcast, and 1-D operands lose their axis again, as in torch.matmul.
    All are fp32, bf16, fp16 or fp64, of one dtype and device, with any strides; the result is contiguous, of that
    dtype. K = 0 gives the bias, or +0. Under autocast, operands other than fp64 are cast to its dtype.
    contract: `repkernels.contract` says what there is and what is followed where none is named. The pair is captured
        now: gradients, and their gradients, follow its second name.

    Bits: SPEC.md, "Contractions" for r = RN32 of the contraction (binary64 for fp64) and "matmul and linear" for what
    follows: + bias in one addition, one rounding, zeros stored as +0. Of `fixedNN` (S = NN / 8 digits, m the largest
    finite magnitude of a row of a or column of b, L = 127 * (256^S - 1) / 255):
    |r - ab| <= (m_a * sum|b| + m_b * sum|a|) / L + K * m_a * m_b * (1 + d) / L^2 + 2^-24 |r|, with
    d = 0, 0, 2^16, 2^25 + 2^16 for S = 1..4: normwise, so I @ x need not be x. `ordered`: the rounding errors of an
    fp32 chain, at most about (min(K, 4096) + K / 4096) * 2^-24 * sum|a||b|.

    Raises, before anything is launched and naming the argument: TypeError for what is no tensor; RuntimeError for
    shapes, dtypes or devices that do not fit together; NotImplementedError (a RuntimeError) for other dtypes, layouts
    and devices; ValueError for an unknown contract, `native` on fp32 or fp64 and `fixedNN` on fp64.
    """
    kept = NOTHING_KEPT
    if isinstance(b, Prepared):
        kept, contract, b = b.number, b.contract if contract is None else contract, b.weight.t()
    return product(a, b, bias, contract, kept)


def product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    contract: ContractLike | None,
    kept: int,
    a_name: str = "a",
    b_name: str = "b",
) -> Tensor:
    """`matmul` with the number of what is kept of b, and the names its errors give to the operands."""
    checks.operand(a_name, a)
    checks.operand(b_name, b)
    if bias is not None:
        checks.operand("bias", bias)
    device_type = checks.device_type(a)
    dtype = checks.autocast(device_type)
    if dtype is not None:
        if b.dtype != dtype:
            kept = NOTHING_KEPT  # of the cast copy nothing is kept: it is another one at every call
        a, b, bias = checks.cast(a, dtype), checks.cast(b, dtype), None if bias is None else checks.cast(bias, dtype)
    _check_fit(a, b, bias, a_name, b_name)
    a_axes, b_axes = a.ndim, b.ndim
    if a_axes == 1:
        a = a.unsqueeze(0)
    if b_axes == 1:
        b = b.unsqueeze(1)
        bias = None if bias is None else bias.reshape(1)
    if contract is None and torch.compiler.is_compiling():
        result = _matmul_by_token(a, b, bias, kept, contract_in_force(a), False)
    else:
        result = _matmul(a, b, bias, kept, *resolve(contract, a.dtype, device_type))
    if b_axes == 1:
        result = result.squeeze(-1)
    if a_axes == 1:
        result = result.squeeze(-1 if b_axes == 1 else -2)
    return result


def _check_fit(a: Tensor, b: Tensor, bias: Tensor | None, a_name: str, b_name: str) -> None:
    checks.same(b_name, b, a_name, a)
    if a.ndim == 0 or b.ndim == 0:
        name = a_name if a.ndim == 0 else b_name
        raise RuntimeError(f"{name}: a product needs at least 1 dimension, got a scalar; multiply with *")
    rows = b.shape[0] if b.ndim == 1 else b.shape[-2]
    if a.shape[-1] != rows:
        raise RuntimeError(
            f"{a_name} and {b_name}: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit: "
            f"{a_name}'s last size {a.shape[-1]} must equal {b_name}'s contracted size {rows}"
        )
    if a.ndim > 2 and b.ndim > 2:
        for x, y in zip(reversed(a.shape[:-2]), reversed(b.shape[:-2]), strict=False):
            if x != y and x != 1 and y != 1:
                raise RuntimeError(
                    f"{a_name} and {b_name}: batch sizes {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not "
                    "broadcast; sizes must be equal or 1"
                )
    if bias is not None:
        checks.same("bias", bias, a_name, a)
        wanted = () if b.ndim == 1 else (b.shape[-1],)
        if bias.shape != wanted:
            raise RuntimeError(f"bias: expected shape {wanted}, one per column of {b_name}, got {tuple(bias.shape)}")
