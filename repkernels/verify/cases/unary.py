"""The functions of one tensor, result and gradient, and pow."""

import torch
from torch import Tensor

import repkernels
from repkernels.nn import functional
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands


def _unary(case: Case, device: torch.device) -> dict[str, Tensor]:
    name, options = case["function"], {}
    if name == "gelu_tanh":
        name, options = "gelu", {"approximate": "tanh"}
    function = getattr(functional, name, None) or getattr(repkernels, name)
    x = operand(case, 0, device).requires_grad_()
    out = function(x, **options)
    (grad,) = torch.autograd.grad(out, x, operand({**case, "kind": "ordinary"}, 3, device, x.shape))
    return {"out": out, "grad": grad}


def _pow(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    options = case.get("options", {})
    out = repkernels.pow(options.get("input", x[0]), options.get("exponent", x[-1]))
    grads = torch.autograd.grad(out, x, operand({**case, "kind": "ordinary"}, 3, device, x[0].shape))
    names = ["grad_1"] if "input" in options else ["grad_0", "grad_1"]
    return {"out": out, **dict(zip(names, grads, strict=False))}


COMPUTE = {"unary": _unary, "pow": _pow}
