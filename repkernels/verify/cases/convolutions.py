"""Golden cases of convolutions through their public functions."""

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands


def _conv(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    function = getattr(functional, f"{case['op']}{x[0].ndim - 2}d")
    out = function(*x, **_arguments(case["options"]), contract=case["contract"])
    grads = torch.autograd.grad(out, x, operand(case, 3, device, out.shape))
    return {"out": out} | dict(zip(("grad_input", "grad_weight", "grad_bias"), grads, strict=True))


def _arguments(options: dict[str, object]) -> dict[str, object]:
    """Options with tuples for JSON's lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


COMPUTE = {"conv": _conv, "conv_transpose": _conv}
