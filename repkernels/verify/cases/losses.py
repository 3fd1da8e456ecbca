"""Softmax and losses."""

import warnings
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand

Results = dict[str, Tensor]
FUNCTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "mse": ("mse_loss", {}),
    "l1": ("l1_loss", {}),
    "smooth_l1": ("smooth_l1_loss", {"beta": 0.75}),
    "huber": ("huber_loss", {"delta": 0.8}),
    "bce_with_logits": ("binary_cross_entropy_with_logits", {}),
    "bce": ("binary_cross_entropy", {}),
    "kl_div": ("kl_div", {}),
    "kl_div_log": ("kl_div", {"log_target": True}),
}


def _softmax(case: Case, device: torch.device) -> Results:
    x = operand(case, 0, device).requires_grad_()
    out = getattr(functional, case["op"])(x, 1)
    (grad,) = torch.autograd.grad(out, x, _ordinary(case, 1, device, x.shape))
    return {"out": out, "grad": grad}


def _cross_entropy(case: Case, device: torch.device) -> Results:
    options, x = case["options"], operand(case, 0, device).requires_grad_()
    target = inputs.targets(x.shape[1], x.shape[0], case["seed"], 1).to(device)
    if "probabilities" in options:
        target = _unit(_ordinary(case, 3, device, x.shape)).requires_grad_()
    loss = functional.cross_entropy(
        x,
        target,
        _ordinary(case, 2, device, x.shape[1:]).abs() if "weight" in options else None,
        reduction=case["reduction"],
        label_smoothing=options.get("smoothing", 0.0),
        ignore_index=options.get("ignore_index", -100),
    )
    return _results(case, loss, (x, target) if "probabilities" in options else (x,))


def _nll_loss(case: Case, device: torch.device) -> Results:
    options, x = case["options"], operand(case, 0, device).requires_grad_()
    target = inputs.targets(x.shape[1], x.shape[0], case["seed"], 1).to(device)
    weight = _ordinary(case, 2, device, x.shape[1:]).abs() if "weight" in options else None
    ignored = options.get("ignore_index", -100)
    loss = functional.nll_loss(x, target, weight, reduction=case["reduction"], ignore_index=ignored)
    return _results(case, loss, (x,))


def _losses(case: Case, device: torch.device) -> Results:
    options = case["options"]
    x, y = operand(case, 0, device), operand(case, 1, device)
    if options["loss"] == "bce":
        x = _unit(x)
    if options["loss"] in ("bce", "bce_with_logits", "kl_div"):
        y = _unit(_ordinary(case, 1, device, y.shape))
    name, arguments = FUNCTIONS[options["loss"]]
    weights = {
        key: _ordinary(case, stream, device, x.shape).abs()
        for stream, key in ((2, "weight"), (3, "pos_weight"))
        if options.get(key)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = x.requires_grad_(), y.requires_grad_()
        loss = getattr(functional, name)(x, y, reduction=case["reduction"], **arguments, **weights)
    return _results(case, loss, () if options.get("loss_only") else (x, y))


def _unit(x: Tensor) -> Tensor:
    """|x| / 2, and 1 where that is more: a probability."""
    return (x.abs() * 0.5).clamp(max=1)


def _ordinary(case: Case, stream: int, device: torch.device, shape: tuple[int, ...]) -> Tensor:
    return operand({**case, "kind": "ordinary"}, stream, device, shape)


def _results(case: Case, loss: Tensor, of: tuple[Tensor, ...]) -> Results:
    """The loss and its gradients, from an operand for each element, from 1 for a scalar."""
    upstream = _ordinary(case, 4, loss.device, loss.shape) if case["reduction"] == "none" else torch.ones_like(loss)
    grads = torch.autograd.grad(loss, of, upstream) if of else ()
    return {"loss": loss, **dict(zip(("grad", "grad_target"), grads, strict=False))}


COMPUTE = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    "cross_entropy_options": _cross_entropy,
    "nll_loss": _nll_loss,
    "losses": _losses,
}
