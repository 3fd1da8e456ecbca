"""Rows taken by index, and the SUM of the rows that share an index (SPEC.md, "Grouped sums"): each other's gradients.

Positions are grouped by a stable sort of their integer targets, so a group's rows stand in ascending position; their
sum follows the SUM rule, and no two threads ever add to one place.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.operation import operation

INDICES = (torch.int64, torch.int32)
# No position has it.
NOTHING = -1


def groups(index: Tensor, targets: int, skip: int = NOTHING) -> tuple[Tensor, Tensor]:
    """(order, starts) of index (P,): the positions of target t are order[starts[t] : starts[t + 1]], ascending, int64.

    Positions of `skip`, and of what is not in [0, targets), are in no group.
    """
    keys = index if skip == NOTHING else index.masked_fill(index == skip, targets)
    if targets < 2**31 - 1:
        keys = keys.to(torch.int32)
    keys, order = torch.sort(keys, stable=True)
    borders = torch.arange(targets + 1, dtype=keys.dtype, device=keys.device)
    return order, torch.searchsorted(keys, borders)


def check_range(name: str, index: Tensor, size: int, error: type[Exception] = IndexError) -> None:
    """`error` on the CPU, a device-side assertion on a GPU, unless every index is in [0, size)."""
    inside = (index >= 0) & (index < size)
    if index.device.type != "cpu":
        torch._assert_async(inside.all(), f"{name}: an index is out of range")
    elif not inside.all():
        wrong = index[~inside][0].item()
        raise error(f"{name}: index {wrong} is out of range; expected 0 <= index < {size}")


def _run(x: Tensor, index: Tensor, targets: int, skip: int, mean: bool) -> Tensor:
    kernels = backend("grouped_sum", x.device.type)
    return kernels.grouped_sum(x, *groups(index, targets, skip), None, 1.0, mean, x.dtype)


def _fake(x: Tensor, index: Tensor, targets: int, skip: int, mean: bool) -> Tensor:
    return x.new_empty((targets, x.shape[1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, index, _, ctx.skip, ctx.mean = inputs
    ctx.save_for_backward(index)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    if ctx.mean:
        raise NotImplementedError("scale_grad_by_freq: gradients of this gradient are not supported")
    return _take(grad, *ctx.saved_tensors, ctx.skip, True, False, "index"), None, None, None, None


def _run_take(w: Tensor, index: Tensor, skip: int, drop: bool, mean: bool, name: str) -> Tensor:
    skipped = index == skip if drop and skip != NOTHING else None
    if skipped is not None:
        index = index.masked_fill(skipped, 0)
    check_range(name, index, w.shape[0])
    rows = w.index_select(0, index)
    return rows if skipped is None else rows.masked_fill_(skipped[:, None], 0)


def _fake_take(w: Tensor, index: Tensor, skip: int, drop: bool, mean: bool, name: str) -> Tensor:
    return w.new_empty((index.shape[0], w.shape[1]))


def _setup_take(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    w, index, ctx.skip, _, ctx.mean, _ = inputs
    ctx.targets = w.shape[0]
    ctx.save_for_backward(index)


def _backward_take(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    return _grouped_sum(grad, *ctx.saved_tensors, ctx.targets, ctx.skip, ctx.mean), None, None, None, None, None


def _vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, index: Tensor, *rest: Any) -> tuple[Tensor, int]:
    return batched(_grouped_sum, info, in_dims, x, index, *rest)


def _vmap_take(info: Any, in_dims: tuple[Any, ...], w: Tensor, index: Tensor, *rest: Any) -> tuple[Tensor, int]:
    return batched(_take, info, in_dims, w, index, *rest)


def batched(call: Any, info: Any, in_dims: tuple[Any, ...], x: Tensor, index: Tensor, *rest: Any) -> tuple[Tensor, int]:
    """vmap of call(x (R, C), index, *rest) -> (R', C): more columns; or one by one where each sample has its index."""
    size = info.batch_size
    if in_dims[1] is None:
        wide = x.movedim(in_dims[0], 1)
        rows = call(wide.reshape(wide.shape[0], -1), index, *rest)
        return rows.view(rows.shape[0], size, -1), 1
    samples = x.expand(size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    pairs = zip(samples.unbind(), index.movedim(in_dims[1], 0).unbind(), strict=True)
    return torch.stack([call(*pair, *rest) for pair in pairs]), 0


_grouped_sum = operation("grouped_sum", _run, _fake, _setup_context, _backward, _vmap)
_take = operation("take_rows", _run_take, _fake_take, _setup_take, _backward_take, _vmap_take)


def grouped_sum(x: Tensor, index: Tensor, targets: int) -> Tensor:
    """x (P, C), index (P,) -> (targets, C): the SUM of the rows that each target is the index of, rounded once."""
    return _grouped_sum(x, index, targets, NOTHING, False)


def take_rows(w: Tensor, index: Tensor, name: str, skip: int = NOTHING, mean: bool = False) -> Tensor:
    """w (T, C), index (P,) -> (P, C): its rows. The gradient of w is their grouped sum.

    skip: an index whose positions give no gradient. mean: the gradient is divided by the number of positions.
    name: the argument that an index out of range is blamed on.
    """
    return _take(w, index, skip, False, mean, name)
