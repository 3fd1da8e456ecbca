"""Losses, below autograd: from this library's, under torch's numbers for the reductions."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from repkernels.nn import functional
from repkernels.reproducible.gradients import gradients

WHY = "torch sums the losses in another order on each device"
_REDUCTIONS = ("none", "mean", "sum")


def _of_two(function: Callable[..., Tensor], option: str | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(forward, backward) of a loss of input and target with at most one more number, as aten has them."""

    def forward(input: Tensor, target: Tensor, reduction: int = 1, *rest: Any) -> Tensor:
        named = {option: rest[0]} if option is not None and rest else {}
        return function(input, target, reduction=_REDUCTIONS[reduction], **named)

    def backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, *rest: Any) -> Tensor | None:
        return gradients(lambda x: forward(x, target, reduction, *rest), (input,), grad_output)[0]

    return forward, backward


def _binary(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    return functional.binary_cross_entropy(input, target, weight, reduction=_REDUCTIONS[reduction])


def _binary_backward(
    grad_output: Tensor, input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor | None:
    return gradients(lambda x: _binary(x, target, weight, reduction), (input,), grad_output)[0]


def _with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        input, target, weight, reduction=_REDUCTIONS[reduction], pos_weight=pos_weight
    )


def _nll(input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Tensor:
    kind = _REDUCTIONS[reduction]
    return functional.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=kind)


def _nll_forward(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    return _nll(input, target, weight, reduction, ignore_index), input.new_zeros(())


def _nll_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor | None:
    return gradients(lambda x: _nll(x, target, weight, reduction, ignore_index), (input,), grad_output)[0]


_mse, _mse_backward = _of_two(functional.mse_loss, None)
_smooth, _smooth_backward = _of_two(functional.smooth_l1_loss, "beta")
_huber, _huber_backward = _of_two(functional.huber_loss, "delta")

ATEN: dict[str, Callable[..., Any]] = {
    "mse_loss": _mse,
    "mse_loss_backward": _mse_backward,
    "smooth_l1_loss": _smooth,
    "smooth_l1_loss_backward": _smooth_backward,
    "huber_loss": _huber,
    "huber_loss_backward": _huber_backward,
    "binary_cross_entropy": _binary,
    "binary_cross_entropy_backward": _binary_backward,
    "binary_cross_entropy_with_logits": _with_logits,
    "nll_loss_forward": _nll_forward,
    "nll_loss_backward": _nll_backward,
    "nll_loss2d_forward": _nll_forward,
    "nll_loss2d_backward": _nll_backward,
}
