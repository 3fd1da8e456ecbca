"""sort and topk, with their gradients."""

import torch
from torch import Tensor

import repkernels
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands


def _sort(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    order = (case["dim"], case["descending"])
    found = repkernels.sort(x, *order) if case["k"] is None else repkernels.topk(x, case["k"], *order)
    values, indices = found
    upstream = operand({**case, "kind": "ordinary"}, 3, device, values.shape)
    (grad,) = torch.autograd.grad(values, x, upstream)
    return {"values": values, "indices": indices, "grad": grad}


COMPUTE = {"sort": _sort}
