"""Losses of single elements with torch's names: checks, and the formula each stands for (ops/loss_formulas.py)."""

import warnings
from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.cross_entropy import check_reduction
from repkernels.ops.loss_formulas import reduced, wide
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum_rows

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


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
            count = sum_rows(wide(w).reshape(-1, 1))[0]
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
    "probabilities", _run_probabilities, torch.empty_like, _save_nothing, _backward_probabilities, _vmap_probabilities
)
