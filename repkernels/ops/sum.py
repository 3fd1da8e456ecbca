"""SUM and mean (SPEC.md, "Sums" and "Reductions").

The terms of a column are padded with -0.0 to a power of two and halved up to 1024 of them, laid on 1024 lanes up to
65536, and summed in blocks of 65536 beyond. Half types are widened and rounded once, fp64 is summed in binary64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks, reduce
from repkernels.ops.backend import backend
from repkernels.ops.convert import converted
from repkernels.ops.operation import operation
from repkernels.ops.reduce import Dim


def _run(x: Tensor) -> Tensor:
    return backend("sum", x.device.type).sum_rows(x)


def _fake(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[1],))


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.rows = inputs[0].shape[0]


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    return _repeat_rows(grad, ctx.rows)


def _vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
    # Every column is summed on its own, so a batch is only more columns.
    x = x.movedim(in_dims[0], 1)
    return _sum_rows(x.reshape(x.shape[0], -1)).view(x.shape[1:]), 0


def _run_repeat(v: Tensor, rows: int) -> Tensor:
    return v.repeat(rows, 1)


def _fake_repeat(v: Tensor, rows: int) -> Tensor:
    return v.new_empty((rows, v.shape[0]))


def _setup_repeat(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    pass


def _backward_repeat(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _sum_rows(grad), None


def _vmap_repeat(info: Any, in_dims: tuple[int, None], v: Tensor, rows: int) -> tuple[Tensor, int]:
    v = v.movedim(in_dims[0], 0)
    return _repeat_rows(v.reshape(-1), rows).view(rows, *v.shape), 1


_sum_rows = operation("sum_rows", _run, _fake, _setup_context, _backward, _vmap)
# Not `expand`, whose gradient is torch's own sum.
_repeat_rows = operation("repeat_rows", _run_repeat, _fake_repeat, _setup_repeat, _backward_repeat, _vmap_repeat)


def sum_rows(x: Tensor) -> Tensor:
    """The SUM of every column of x (R, N), any strides -> (N,) in x's dtype; R = 0 gives +0.

    x: fp32, bf16, fp16 or fp64 on the CPU or a GPU. The bits are those of SPEC.md, "Sums". Differentiable, any number
    of times. Raises NotImplementedError for other dtypes and devices, RuntimeError for another number of dimensions.
    """
    checks.operand("x", x)
    if x.ndim != 2:
        raise RuntimeError(f"x: expected 2 dimensions (rows, columns), got shape {tuple(x.shape)}")
    return _sum_rows(x)


def _run_sum(x: Tensor, dims: list[int], dtype: torch.dtype) -> Tensor:
    terms = reduce.columns(x, dims)
    total = backend("sum", x.device.type).reduce(terms, "value", None, "sum", 1, dtype)
    return total.view(reduce.kept_shape(x.shape, dims))


def _fake_sum(x: Tensor, dims: list[int], dtype: torch.dtype) -> Tensor:
    return x.new_empty(reduce.kept_shape(x.shape, dims), dtype=dtype)


def _setup_sum(ctx: Any, inputs: tuple[Tensor, list[int], torch.dtype], output: Tensor) -> None:
    x, ctx.dims, _ = inputs
    ctx.shape, ctx.dtype = x.shape, x.dtype


def _backward_sum(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return repeated(grad.to(ctx.dtype), ctx.shape, ctx.dims), None, None


def _run_mean(x: Tensor, dims: list[int], dtype: torch.dtype) -> Tensor:
    terms, n = reduce.columns(x, dims), reduce.count(x.shape, dims)
    total = backend("sum", x.device.type).reduce(terms, "value", None, "mean", n, dtype)
    return total.view(reduce.kept_shape(x.shape, dims))


def _backward_mean(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    share = _share(grad, reduce.count(ctx.shape, ctx.dims), ctx.dtype)
    return repeated(share, ctx.shape, ctx.dims), None, None


def _run_share(v: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    v = v.contiguous()
    wide = v if v.dtype == torch.float64 else v.float()
    out = torch.empty(v.shape, dtype=dtype, device=v.device)
    if v.numel():
        places = [t.view(1, 1, 1, -1) for t in (v, out)]
        backend("reduction_gradient", v.device.type).gradient(*places, wide.view(-1), None, None, "quotient", n)
    return out


def _fake_share(v: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    return v.new_empty(v.shape, dtype=dtype)


def _setup_share(ctx: Any, inputs: tuple[Tensor, int, torch.dtype], output: Tensor) -> None:
    v, ctx.n, _ = inputs
    ctx.dtype = v.dtype


def _backward_share(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _share(grad, ctx.n, ctx.dtype), None, None


def _vmap_share(info: Any, in_dims: tuple[int, None, None], v: Tensor, *rest: Any) -> tuple[Tensor, int]:
    return _share(v.movedim(in_dims[0], 0), *rest), 0


def _run_broadcast(v: Tensor, sizes: list[int], dims: list[int]) -> Tensor:
    return reduce.with_axes(v, dims).expand(sizes).clone(memory_format=torch.contiguous_format)


def _fake_broadcast(v: Tensor, sizes: list[int], dims: list[int]) -> Tensor:
    return v.new_empty(sizes)


def _setup_broadcast(ctx: Any, inputs: tuple[Tensor, list[int], list[int]], output: Tensor) -> None:
    v, _, ctx.dims = inputs
    ctx.dtype = v.dtype


def _backward_broadcast(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _sum(grad, ctx.dims, ctx.dtype), None, None


def _vmap_broadcast(
    info: Any, in_dims: tuple[Any, ...], v: Tensor, sizes: list[int], dims: list[int]
) -> tuple[Tensor, int]:
    return _broadcast(v.movedim(in_dims[0], 0), [info.batch_size, *sizes], [d + 1 for d in dims]), 0


_sum: Callable[..., Any] = operation("sum", _run_sum, _fake_sum, _setup_sum, _backward_sum, reduce.moved(lambda: _sum))
_mean: Callable[..., Any] = operation(
    "mean", _run_mean, _fake_sum, _setup_sum, _backward_mean, reduce.moved(lambda: _mean)
)
_share = operation("mean_gradient", _run_share, _fake_share, _setup_share, _backward_share, _vmap_share)
_broadcast = operation(
    "broadcast", _run_broadcast, _fake_broadcast, _setup_broadcast, _backward_broadcast, _vmap_broadcast
)


def repeated(v: Tensor, shape: Sequence[int], dims: list[int]) -> Tensor:
    """v along the axes that a reduction took: a view, or an operation where v's own gradient is recorded.

    The gradient of torch's `expand` would be torch's sum.
    """
    if torch._C._are_functorch_transforms_active() or (torch.is_grad_enabled() and v.requires_grad):
        return _broadcast(v, list(shape), dims)
    return reduce.with_axes(v, dims).expand(shape)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x.expand(shape)` whose gradient is our SUM."""
    before = len(shape) - x.ndim
    dims = [d for d, size in enumerate(shape) if d < before or (x.shape[d - before] == 1 and size != 1)]
    if not dims:
        return x
    return repeated(x.reshape([x.shape[d - before] for d in range(len(shape)) if d not in dims]), shape, dims)


def sum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """The SUM over `dim` (an int, ints, or all), torch.sum's signature.

    input: fp32, bf16, fp16, fp64, any strides; result in its dtype, half types rounded once. Integers and bool sum
    to int64, wrapping. dtype: input is converted first. Autocast: half types give fp32. No terms give +0.
    Bits: SPEC.md, "Reductions". Differentiable, any number of times.
    Accuracy: |error| <= 1.01 (d + 1) u S for n terms with S = SUM |x| and u = 2^-24 (fp64: 2^-53), where d = 10 up to
    1024 terms, 73 up to 65536, 83 + d(n / 65536) beyond; and one rounding of a half type.
    Raises IndexError for an axis out of range, RuntimeError for one given twice, NotImplementedError for other dtypes.
    """
    reduce.operand("input", input, integers=True)
    dims = reduce.axes(input.ndim, dim)
    dtype = reduce.single_precision(input, dtype)
    if (input.dtype if dtype is None else dtype) in reduce.INTEGERS:
        return torch.sum(input, dims, keepdim, dtype=dtype)  # exact in any order
    return _reduced(_sum, input, dims, keepdim, dtype)


def mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """div_rn(SUM, RN(n)) over `dim` (an int, ints, or all), torch.mean's signature; NaN of nothing.

    Dtypes, strides, accuracy, errors and gradients as `repkernels.sum`; integers need dtype=.
    """
    reduce.operand("input", input, integers=True)
    wanted = input.dtype if dtype is None else dtype
    if wanted in reduce.INTEGERS:
        what = "Input" if dtype is None else "Optional"
        raise RuntimeError(
            f"mean(): could not infer output dtype. {what} dtype must be either a floating point or complex dtype. "
            f"Got: {wanted}"
        )
    return _reduced(_mean, input, reduce.axes(input.ndim, dim), keepdim, dtype)


def _reduced(op: Any, x: Tensor, dims: list[int], keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    """x converted to `dtype` and reduced; kernels widen it by themselves where they can."""
    if dtype is not None:
        checks.operand("dtype", x.new_empty((0,), dtype=dtype))
        if not (x.dtype in (torch.bfloat16, torch.float16) and dtype == torch.float32):
            x = converted(x, dtype)
    inside = reduce.inside(dims, x.ndim)
    y = op(x, inside, x.dtype if dtype is None else dtype)
    return reduce.with_axes(y, inside) if keepdim else y
