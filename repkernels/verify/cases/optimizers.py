"""Golden cases of Adam, AdamW and clipping through their public classes and functions."""

import torch
from torch import Tensor

from repkernels.nn.utils import clip_grad_norm_
from repkernels.optim import Adam, AdamW
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands


def _adam(case: Case, device: torch.device) -> dict[str, Tensor]:
    parameter = torch.nn.Parameter(operand(case, 0, device))
    optimizer = (AdamW if case["op"] == "adamw" else Adam)([parameter], **case["options"])
    for stream in (1, 2, 3):
        parameter.grad = operand(case, stream, device, parameter.shape)
        optimizer.step()
    state = optimizer.state[parameter]
    return {"out": parameter.detach(), "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}


def _clip(case: Case, device: torch.device) -> dict[str, Tensor]:
    grads = operands(case, device)
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for p, g in zip(parameters, grads, strict=True):
        p.grad = g
    options = case["options"]
    total = clip_grad_norm_(parameters, options["max_norm"], float(options["norm_type"]))
    return {"total": total} | {f"grad{i}": p.grad for i, p in enumerate(parameters) if p.grad is not None}


COMPUTE = {"adam": _adam, "adamw": _adam, "clip_norm": _clip}
