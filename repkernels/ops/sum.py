"""SUM over rows (SPEC.md, "Sums"): the gradient of every bias.

The terms of a column are padded with -0.0 to a power of two and halved up to 1024 of them, laid on 1024 lanes up to
65536, and summed in blocks of 65536 beyond. Half types are widened and rounded once, fp64 is summed in binary64.
"""

from typing import Any

from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.operation import operation


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
