"""Reductions and cumulative sums, with their gradients."""

import torch
from torch import Tensor

import repkernels
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands


def _reduction(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    name, dims, options = case["function"], case["dims"], case["options"]
    call = getattr(repkernels, name)
    if name in ("max", "min"):
        values, indices = call(x, dims[0])
        results = {"values": values, "indices": indices}
    elif name == "norm":
        results = {"out": call(x, float(options["p"]), dims)}
    else:
        results = {"out": call(x, dims[0] if name == "cumsum" else dims, **options)}
    out = results.get("out", results.get("values"))
    assert out is not None
    upstream = operand({**case, "kind": "ordinary"}, 3, device, out.shape)
    (results["grad"],) = torch.autograd.grad(out, x, upstream)
    return results


COMPUTE = {"reduction": _reduction}
