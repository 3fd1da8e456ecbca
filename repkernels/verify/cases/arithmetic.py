"""Arithmetic on tensors and scalars, and the activations of two operands."""

from collections.abc import Callable

import torch
from torch import Tensor

import repkernels
from repkernels.nn import functional
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "div": repkernels.div,
    "lerp": repkernels.lerp,
    "addcmul": repkernels.addcmul,
    "addcdiv": repkernels.addcdiv,
    "glu": functional.glu,
    "prelu": functional.prelu,
}


def _arithmetic(case: Case, device: torch.device) -> dict[str, Tensor]:
    function, options = FUNCTIONS[case["op"]], dict(case["options"])
    leaves = operands(case, device, requires_grad=True)
    # torch's third argument of lerp, and second of div, may be a number.
    numbers = [options.pop(key) for key in ("other", "weight") if key in options]
    out = function(*leaves, *numbers, **options)
    if options.get("rounding_mode"):
        return {"out": out.detach()}
    upstream = operand({**case, "kind": "ordinary"}, 3, device, tuple(out.shape))
    grads = torch.autograd.grad(out, leaves, upstream)
    return {"out": out.detach(), **{f"grad_{k}": grad for k, grad in enumerate(grads)}}


COMPUTE: dict[str, Callable[[Case, torch.device], dict[str, Tensor]]] = dict.fromkeys(FUNCTIONS, _arithmetic)
