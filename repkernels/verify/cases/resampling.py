"""Padding, resizing, sampling, bags and ctc_loss, with their gradients."""

import math

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand


def _resampling(case: Case, device: torch.device) -> dict[str, Tensor]:
    function, options = case["function"], dict(case["options"])
    leaves = [operand(case, 0, device)]
    if function == "ctc_loss":
        leaves = [-leaves[0].abs()]
    if function == "grid_sample":
        leaves.append(operand(case, 1, device))
    if options.pop("weighted", False):
        leaves.append(operand({**case, "kind": "ordinary"}, 2, device, case["shapes"][1]))
    for leaf in leaves:
        leaf.requires_grad_()
    x = leaves[0]
    if function == "embedding_bag":
        index = _labels(case, x.shape[0], device)
        options["offsets"] = torch.tensor(options["offsets"], device=device)
        options["per_sample_weights"] = leaves[1] if len(leaves) > 1 else None
        out = functional.embedding_bag(index, x, **options)
    elif function == "ctc_loss":
        labels = _labels(case, x.shape[2], device)
        samples, length = labels.shape
        out = functional.ctc_loss(x, labels, [x.shape[0]] * samples, [length] * samples, **options)
    else:
        out = getattr(functional, function)(*leaves, **options)
    grads = torch.autograd.grad(out, leaves, operand({**case, "kind": "ordinary"}, 3, device, out.shape))
    return {"out": out} | dict(zip(("grad", "grad_other"), grads, strict=False))


def _labels(case: Case, classes: int, device: torch.device) -> Tensor:
    shape = case["shapes"][1]
    return inputs.targets(classes, math.prod(shape), case["seed"], 1).view(shape).to(device)


COMPUTE = {"resampling": _resampling}
