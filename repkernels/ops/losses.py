"""Losses of single elements, and their SUM (SPEC.md, "Losses of elements").

A loss is a formula f(x, y) of input and target, times a weight. Its gradient is a formula too, times the weight, times
the gradient of the loss: each a few single rounded operations.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.cross_entropy import check_reduction
from repkernels.ops.operation import operation
from repkernels.ops.quotient import quotient
from repkernels.ops.sum import sum_rows

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


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
        by_g = _gradient(
            u.float() if x.dtype != torch.float64 else u, _wide(x), _wide(y), w, v, ctx.name, ctx.parameter
        )
        by_g = (sum_rows(by_g.reshape(-1, 1))[0] if g.ndim == 0 else by_g).to(g.dtype)
    by_x, by_y = _derivatives(ctx, _wide(u) * _wide(g), x, y, w, v, ctx.needs_input_grad[1:3])
    return by_g, by_x, by_y, None, None, None, None


def _wide(x: Tensor) -> Tensor:
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
    return _loss(*_batched(info, in_dims, args)), 0


def _vmap_total(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    x, y, *others = _batched(info, in_dims, args)
    terms = _loss(_wide(x), _wide(y), *others)
    return sum_rows(terms.reshape(info.batch_size, -1).t()), 0


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    g, x, *others = _batched(info, in_dims, args)
    g = g.reshape(info.batch_size, *[1] * (x.ndim - 1)).expand(x.shape) if g.ndim == 1 else g
    return _gradient(g, x, *others), 0


_loss = operation("loss", _run, _fake, _setup_context, _backward, _vmap)
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
        return _loss(x, y, w, v, name, parameter)
    total = _total(x, y, w, v, name, parameter)
    if reduction != "sum":
        if not isinstance(count, Tensor):
            count = torch.full_like(total, float(x.numel()) if count is None else count)
        total = quotient(total, count)
    return total.to(x.dtype)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(x - y)^2, torch.nn.functional.mse_loss's signature.

    input, target: one shape, fp32, bf16, fp16 or fp64, promoted as torch does. weight: of that shape; "mean" then
    divides by its SUM instead of the number of elements. Result in the promoted dtype, rounded once; under autocast
    fp32. Bits: SPEC.md, "Losses of elements"; an element is within 2 ulp. Differentiable by input and target any number
    of times, not by weight.
    Raises ValueError for sizes or a reduction that do not fit, RuntimeError for different devices, NotImplementedError
    for other dtypes, a weight that requires a gradient, and the deprecated size_average and reduce.
    """
    return _of_difference("mse", input, target, size_average, reduce, reduction, weight)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|x - y|, torch.nn.functional.l1_loss's signature. Arguments, result and errors are those of `mse_loss`.

    An element is correctly rounded. The gradient at x = y is 0.
    """
    return _of_difference("l1", input, target, size_average, reduce, reduction, weight)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """d^2 / (2 beta) where |d| < beta, otherwise |d| - beta / 2, d = x - y; torch's signature.

    beta: 0 or more, otherwise RuntimeError; 0 is l1_loss. The rest as `mse_loss`. An element is within 3 ulp.
    """
    if not beta >= 0:
        raise RuntimeError(f"beta: expected 0 or more, got {beta}")
    name = "smooth_l1" if beta > 0 else "l1"
    return _of_difference(name, input, target, size_average, reduce, reduction, None, float(beta))


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """d^2 / 2 where |d| <= delta, otherwise delta * (|d| - delta / 2), d = x - y; torch's signature.

    delta: above 0, otherwise RuntimeError. weight: as in torch, "mean" divides by the number of elements also with it.
    The rest as `mse_loss`. An element is within 3 ulp.
    """
    if not delta > 0:
        raise RuntimeError(f"delta: expected more than 0, got {delta}")
    return _of_difference("huber", input, target, None, None, reduction, weight, float(delta))


def _of_difference(
    name: str,
    input: Tensor,
    target: Tensor,
    size_average: bool | None,
    reduce: bool | None,
    reduction: str,
    weight: Tensor | None,
    parameter: float = 0.0,
) -> Tensor:
    check_reduction(size_average, reduce, reduction)
    x, y = _operands(input, target, checks.FLOATS)
    w, count = None, None
    if weight is not None:
        w = _weight("weight", weight, x, broadcast=False)
        if name != "huber" and reduction == "mean":
            count = sum_rows(_wide(w).reshape(-1, 1))[0]
    return reduced(name, x, y, reduction, count, w, None, parameter)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """pos_weight * y * ln(1 + e^-x) + (1 - y) * ln(1 + e^x), times weight; torch.nn.functional's signature.

    input, target: one shape, fp32, bf16 or fp16, promoted as torch does. weight, pos_weight: broadcast to that shape.
    Result in the promoted dtype, rounded once; under autocast fp32. Bits: SPEC.md, "Losses of elements"; for y in
    [0, 1] and without weights an element is within 5 ulp, for large |x| too. Differentiable by input twice, by target
    once, not by the weights.
    Raises ValueError for sizes or a reduction that do not fit, RuntimeError for different devices and for weights that
    can't be broadcast, NotImplementedError for other dtypes, weights that require a gradient, and the deprecated
    size_average and reduce.
    """
    check_reduction(size_average, reduce, reduction)
    x, y = _operands(input, target, HALF_AND_SINGLE)
    w = None if weight is None else _weight("weight", weight, x)
    v = None if pos_weight is None else _weight("pos_weight", pos_weight, x)
    return reduced("bce_with_logits", x, y, reduction, None, w, v)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(y * ln x + (1 - y) * ln(1 - x)), times weight, logarithms not below -100; torch.nn.functional's signature.

    input: probabilities in [0, 1], otherwise RuntimeError on the CPU and a device-side assertion on a GPU. The rest as
    `binary_cross_entropy_with_logits`; under autocast RuntimeError, as torch. Differentiable once.
    """
    check_reduction(size_average, reduce, reduction)
    if isinstance(input, Tensor) and checks.autocast(input.device.type) is not None:
        raise RuntimeError(
            "binary_cross_entropy: unsafe under autocast; give logits to binary_cross_entropy_with_logits"
        )
    x, y = _operands(input, target, HALF_AND_SINGLE)
    w = None if weight is None else _weight("weight", weight, x)
    return reduced("bce", _probabilities(x), y, reduction, None, w)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """y * (ln y - x), or with log_target e^y * (y - x), x being logarithms; torch.nn.functional.kl_div's signature.

    input, target: one shape, fp32, bf16 or fp16, promoted as torch does. reduction: also "batchmean", the SUM over the
    first size; "mean" warns as torch does. Result in the promoted dtype, rounded once; under autocast fp32. Bits:
    SPEC.md, "Losses of elements". Differentiable by input twice, by target once.
    Raises ValueError for sizes or a reduction that do not fit, RuntimeError for different devices, NotImplementedError
    for other dtypes and the deprecated size_average and reduce.
    """
    check_reduction(size_average, reduce, reduction, "batchmean")
    x, y = _operands(input, target, HALF_AND_SINGLE)
    if reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides by the number of elements; 'batchmean', by the batch size, is the KL divergence",
            stacklevel=2,
        )
    count = float(x.shape[0]) if reduction == "batchmean" and x.ndim else None
    if reduction == "batchmean" and not x.ndim:
        reduction = "sum"
    return reduced("kl_div_log" if log_target else "kl_div", x, y, reduction, count)


def _operands(input: Tensor, target: Tensor, dtypes: tuple[torch.dtype, ...]) -> tuple[Tensor, Tensor]:
    """Input and target in the type that torch promotes them to, or that autocast asks for."""
    for name, x in (("input", input), ("target", target)):
        checks.operand(name, x, tuple({*dtypes, x.dtype}) if isinstance(x, Tensor) else dtypes)
    if target.device != input.device:
        raise RuntimeError(f"target: on {target.device} but input is on {input.device}; move one of them")
    if target.shape != input.shape:
        raise ValueError(f"target: expected input's shape {tuple(input.shape)}, got {tuple(target.shape)}")
    dtype = torch.promote_types(input.dtype, target.dtype)
    if checks.autocast(input.device.type) is not None and dtype.is_floating_point and dtype != torch.float64:
        dtype = torch.float32
    x, y = input.to(dtype), target.to(dtype)
    checks.operand("input", x, dtypes)
    return x, y


def _weight(name: str, weight: Tensor, x: Tensor, broadcast: bool = True) -> Tensor:
    checks.operand(name, weight, tuple({*checks.FLOATS, weight.dtype}) if isinstance(weight, Tensor) else checks.FLOATS)
    if weight.device != x.device:
        raise RuntimeError(f"{name}: on {weight.device} but input is on {x.device}; move one of them")
    if weight.requires_grad:
        raise NotImplementedError(f"{name}: a gradient by it is not supported; detach() it")
    if not broadcast and weight.shape != x.shape:
        raise ValueError(f"{name}: expected input's shape {tuple(x.shape)}, got {tuple(weight.shape)}")
    if x.dtype == torch.float64 or weight.dtype not in HALF_AND_SINGLE:
        weight = weight.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    return weight.expand(x.shape)


def _run_probabilities(x: Tensor) -> Tensor:
    inside = ((x >= 0) & (x <= 1)).all()
    if x.device.type != "cpu":
        torch._assert_async(inside, "input: a probability is outside [0, 1]")
    elif not inside:
        raise RuntimeError("input: all elements should be between 0 and 1")
    return x.clone()


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _backward_probabilities(ctx: Any, g: Tensor) -> Tensor:
    return g


def _vmap_probabilities(info: Any, in_dims: tuple[Any, ...], x: Tensor) -> tuple[Tensor, int]:
    return _probabilities(x), in_dims[0]


_probabilities = operation(
    "probabilities", _run_probabilities, _fake, _save_nothing, _backward_probabilities, _vmap_probabilities
)
