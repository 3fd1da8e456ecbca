"""Sums into chosen places, with their gradients."""

import math

import torch
from torch import Tensor

import repkernels
from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand


def _grouped_sum(case: Case, device: torch.device) -> dict[str, Tensor]:
    function, options = case["function"], case["options"]
    x = operand(case, 0, device).requires_grad_()
    places = x.shape[options.get("dim", 0)]
    shape = case["shapes"][1]
    index = inputs.targets(places, math.prod(shape), case["seed"], 1).view(shape).to(device)
    if function == "bincount":
        return {"out": repkernels.bincount(index, operand(case, 3, device, index.shape), 12)}
    if function == "index_add":
        source = operand(case, 3, device, (*index.shape, *x.shape[1:]))
        return {"out": repkernels.index_add(x, 0, index, source, alpha=options["alpha"])}
    if function == "scatter_add":
        return {"out": repkernels.scatter_add(x, options["dim"], index, operand(case, 3, device, index.shape))}
    if function == "gather":
        out = repkernels.gather(x, options["dim"], index)
    else:
        out = functional.embedding(index, x, **options)
    (grad,) = torch.autograd.grad(out, x, operand(case, 3, device, out.shape))
    return {"out": out, "grad": grad}


COMPUTE = {"grouped_sum": _grouped_sum}
