"""Golden cases of norms through their public functions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands

EPS = 1e-5
MOMENTUM = 0.3


def _with_gradients(
    case: Case, device: torch.device, out: Tensor, inputs: Sequence[Tensor], extra: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    grads = torch.autograd.grad(out, inputs, operand(case, 3, device, out.shape))
    names = ("grad_input", "grad_weight", "grad_bias")
    return {"out": out} | dict(zip(names, grads, strict=False)) | (extra or {})


def _rows(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, weight, bias = operands(case, device, requires_grad=True)
    shape, centred = x.shape[1:], case["op"] == "layer_norm"
    affine = (weight, bias) if centred else (weight,)
    if "options" not in case:
        norm = functional.layer_norm if centred else functional.rms_norm
        return _with_gradients(case, device, norm(x, shape, *affine, eps=EPS), (x, *affine))
    add_norm = functional.add_layer_norm if centred else functional.add_rms_norm
    y, total = add_norm(x, operand(case, 4, device, x.shape), shape, *affine, eps=EPS)
    return _with_gradients(case, device, y, (x, *affine), {"sum": total})


def _group_norm(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    return _with_gradients(case, device, functional.group_norm(x[0], case["options"]["groups"], *x[1:], EPS), x)


def _batch_norm(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    channels = x[1].shape
    mean, var = operand(case, 4, device, channels), operand(case, 5, device, channels).abs()
    norm = functional.batch_norm if case["op"] == "batch_norm" else functional.instance_norm
    out = norm(x[0], mean, var, *x[1:], "options" not in case, MOMENTUM, EPS)
    return _with_gradients(case, device, out, x, {"mean": mean, "var": var})


COMPUTE = {
    "layer_norm": _rows,
    "rms_norm": _rows,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _batch_norm,
}
