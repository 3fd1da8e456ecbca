"""Losses of single elements, and their SUM, by the name of their formula (SPEC.md, "Losses of elements").

A loss is a formula f(x, y) of input and target, times a weight. Its gradient is a formula too, times the weight, times
the gradient of the loss: each a few single rounded operations.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.operation import operation
from repkernels.ops.quotient import quotient
from repkernels.ops.sum import sum_rows


class Formula(NamedTuple):
    """The derivatives of a formula by name: of losses by x and by y, of gradients by x.

    by_y is "-" where it is minus that by x, and then so is the derivative of the gradient. "0" is a derivative that
    vanishes, None one that is not supported.
    """

    by_x: str | None
    by_y: str | None = None


FORMULAS = {
    "mse": Formula("mse_gradient", "-"),
    "mse_gradient": Formula("mse_curvature", "-"),
    "mse_curvature": Formula("0", "0"),
    "l1": Formula("l1_gradient", "-"),
    "l1_gradient": Formula("0", "0"),
    "smooth_l1": Formula("smooth_l1_gradient", "-"),
    "smooth_l1_gradient": Formula("smooth_l1_curvature", "-"),
    "smooth_l1_curvature": Formula("0", "0"),
    "huber": Formula("huber_gradient", "-"),
    "huber_gradient": Formula("huber_curvature", "-"),
    "huber_curvature": Formula("0", "0"),
    "bce_with_logits": Formula("bce_with_logits_gradient", "bce_with_logits_target_gradient"),
    "bce_with_logits_gradient": Formula("bce_with_logits_curvature"),
    "bce_with_logits_target_gradient": Formula(None, "0"),
    "bce_with_logits_curvature": Formula(None),
    "bce": Formula("bce_gradient", "bce_target_gradient"),
    "bce_gradient": Formula(None),
    "bce_target_gradient": Formula(None),
    "kl_div": Formula("kl_div_gradient", "kl_div_target_gradient"),
    "kl_div_gradient": Formula("0"),
    "kl_div_target_gradient": Formula(None),
    "kl_div_log": Formula("kl_div_log_gradient", "kl_div_log_target_gradient"),
    "kl_div_log_gradient": Formula("0"),
    "kl_div_log_target_gradient": Formula(None),
    "nll": Formula("nll_gradient"),
    "nll_gradient": Formula("0"),
}


def _run(x: Tensor, y: Tensor, w: Tensor | None, v: Tensor | None, name: str, parameter: float) -> Tensor:
    return _kernels(x).elementwise(name, *_laid_out(x, y, w, v), None, parameter)


def _run_total(x: Tensor, y: Tensor, w: Tensor | None, v: Tensor | None, name: str, parameter: float) -> Tensor:
    return _kernels(x).total(name, *_laid_out(x, y, w, v), parameter)


def _run_gradient(
    g: Tensor, x: Tensor, y: Tensor, w: Tensor | None, v: Tensor | None, name: str, parameter: float
) -> Tensor:
    return _kernels(x).elementwise(name, *_laid_out(x, y, w, v, g), parameter)


def _kernels(x: Tensor) -> Any:
    return backend("losses", x.device.type)


def _laid_out(*tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.contiguous() for t in tensors]


def _fake(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _fake_total(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


def _fake_gradient(g: Tensor, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.name, ctx.parameter = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y, w, v = ctx.saved_tensors
    by_x, by_y = _derivatives(ctx, g, x, y, w, v, ctx.needs_input_grad[:2])
    return by_x, by_y, None, None, None, None


def _backward_gradient(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
    g, x, y, w, v = ctx.saved_tensors
    by_g = None
    if ctx.needs_input_grad[0]:
        by_g = _gradient(u.float() if x.dtype != torch.float64 else u, wide(x), wide(y), w, v, ctx.name, ctx.parameter)
        by_g = (sum_rows(by_g.reshape(-1, 1))[0] if g.ndim == 0 else by_g).to(g.dtype)
    by_x, by_y = _derivatives(ctx, wide(u) * wide(g), x, y, w, v, ctx.needs_input_grad[1:3])
    return by_g, by_x, by_y, None, None, None, None


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _derivatives(
    ctx: Any, g: Tensor, x: Tensor, y: Tensor, w: Tensor | None, v: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """g times the derivatives of the formula `ctx.name` by x and y, as far as they are needed."""
    formula = FORMULAS[ctx.name]
    by_x = by_y = None
    if needed[0] or (needed[1] and formula.by_y == "-"):
        by_x = _derivative(ctx, formula.by_x, "input", g, x, y, w, v)
    if needed[1]:
        if formula.by_y == "-":
            by_y = None if by_x is None else by_x.neg()
        else:
            by_y = _derivative(ctx, formula.by_y, "target", g, x, y, w, v)
    return by_x if needed[0] else None, by_y


def _derivative(ctx: Any, name: str | None, by: str, g: Tensor, *tensors: Any) -> Tensor | None:
    if name is None:
        raise NotImplementedError(f"{by}: the derivative of {ctx.name} by it is not supported; detach() it")
    return None if name == "0" else _gradient(g, *tensors, name, ctx.parameter)


def _batched(info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> list[Any]:
    """The tensors among args with the batch as their first axis."""
    return [
        value
        if not isinstance(value, Tensor)
        else value.expand(info.batch_size, *value.shape)
        if dim is None
        else value.movedim(dim, 0)
        for value, dim in zip(args, in_dims, strict=True)
    ]


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return loss(*_batched(info, in_dims, args)), 0


def _vmap_total(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    x, y, *others = _batched(info, in_dims, args)
    terms = loss(wide(x), wide(y), *others)
    return sum_rows(terms.reshape(info.batch_size, -1).t()), 0


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    g, x, *others = _batched(info, in_dims, args)
    g = g.reshape(info.batch_size, *[1] * (x.ndim - 1)).expand(x.shape) if g.ndim == 1 else g
    return _gradient(g, x, *others), 0


loss = operation("loss", _run, _fake, _setup_context, _backward, _vmap)
_total = operation("loss_total", _run_total, _fake_total, _setup_context, _backward, _vmap_total)
_gradient = operation(
    "loss_gradient", _run_gradient, _fake_gradient, _setup_context, _backward_gradient, _vmap_gradient
)


def reduced(
    name: str,
    x: Tensor,
    y: Tensor,
    reduction: str,
    count: Tensor | float | None = None,
    w: Tensor | None = None,
    v: Tensor | None = None,
    parameter: float = 0.0,
) -> Tensor:
    """The formula `name` of x and y times w, elementwise ("none"), or their SUM, divided by count for other means.

    x, y, w, v: of one shape; x and y of one dtype, that of the result. count: their number if None.
    """
    if reduction == "none":
        return loss(x, y, w, v, name, parameter)
    total = _total(x, y, w, v, name, parameter)
    if reduction != "sum":
        if not isinstance(count, Tensor):
            count = torch.full_like(total, float(x.numel()) if count is None else count)
        total = quotient(total, count)
    return total.to(x.dtype)
