"""The golden cases on a device: each operation of the catalogue through its public function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import repkernels
from repkernels import random
from repkernels.nn import Linear, functional
from repkernels.ops.sum import sum_rows
from repkernels.optim import SGD
from repkernels.verify import inputs
from repkernels.verify.cases import FAMILIES
from repkernels.verify.catalogue import Case
from repkernels.verify.compare import difference_from_golden
from repkernels.verify.operands import operand, operands


def differing(case: Case, device: torch.device) -> str | None:
    """None if every result of the case has its bits on `device`; otherwise the first difference."""
    if case["op"] == "digest_container":
        found = _container_digest(case, device)
        wanted = case["results"]["out"]["digest"]
        return None if found == wanted else f"digest {found} instead of {wanted}"
    results = COMPUTE[case["op"]](case, device)
    for name, wanted in case["results"].items():
        if message := difference_from_golden(results[name], wanted):
            return f"{name}: {message}"
    return None


def _matmul(case: Case, device: torch.device) -> dict[str, Tensor]:
    return {"out": repkernels.matmul(*operands(case, device), contract=case["contract"])}


def _linear(case: Case, device: torch.device) -> dict[str, Tensor]:
    return {"out": functional.linear(*operands(case, device), contract=case["contract"])}


def _matmul_grad(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    return _gradients(case, x, repkernels.matmul(*x, contract=case["contract"]))


def _linear_grad(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    return _gradients(case, x, functional.linear(*x, contract=case["contract"]))


def _gradients(case: Case, x: list[Tensor], out: Tensor) -> dict[str, Tensor]:
    grads = torch.autograd.grad(out, x, operand(case, 3, out.device, out.shape))
    return dict(zip(("grad_a", "grad_b", "grad_bias"), grads, strict=False))


def _sum(case: Case, device: torch.device) -> dict[str, Tensor]:
    return {"out": sum_rows(operand(case, 0, device))}


def _relu(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    out = functional.relu(x)
    (grad,) = torch.autograd.grad(out, x, operand(case, 3, device, x.shape))
    return {"out": out, "grad": grad}


def _cross_entropy(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    target = inputs.targets(x.shape[1], x.shape[0], case["seed"], 1).to(device)
    loss = functional.cross_entropy(x, target, reduction=case["reduction"])
    upstream = operand({**case, "kind": "ordinary"}, 3, device, loss.shape) if loss.ndim else torch.ones_like(loss)
    (grad,) = torch.autograd.grad(loss, x, upstream)
    return {"loss": loss, "grad": grad}


def _sgd(case: Case, device: torch.device) -> dict[str, Tensor]:
    parameter = torch.nn.Parameter(operand(case, 0, device))
    optimizer = SGD([parameter], **case["options"])
    for stream in (1, 2, 3):
        parameter.grad = operand(case, stream, device, parameter.shape)
        optimizer.step()
    return {"out": parameter.detach()}


def _init(case: Case, device: torch.device) -> dict[str, Tensor]:
    fan_out, fan_in = case["shapes"][0]
    layer = _drawn(case, lambda: Linear(fan_in, fan_out, device=device))
    return {"weight": layer.weight.detach(), "bias": layer.bias.detach()}


def _permutation(case: Case, device: torch.device) -> dict[str, Tensor]:
    return {"out": _drawn(case, lambda: random.permutation(case["shapes"][0][0], device=device))}


def _drawn(case: Case, draw: Callable[[], Any]) -> Any:
    """What `draw` gives from the case's seed; the process's generator is left as it was."""
    state = random.get_state()
    try:
        random.manual_seed(case["seed"])
        return draw()
    finally:
        random.set_state(state)


def _digest(case: Case, device: torch.device) -> dict[str, Tensor]:
    return {"out": operand(case, 0, device)}


def _container_digest(case: Case, device: torch.device) -> str:
    x = operand(case, 0, device)
    return repkernels.digest({"weight": x, "nested": {"list": [x, (1, 2.5)], "none": None}, "flag": True, "text": "é"})


COMPUTE: dict[str, Callable[[Case, torch.device], dict[str, Tensor]]] = {
    "matmul": _matmul,
    "matmul_grad": _matmul_grad,
    "linear": _linear,
    "linear_grad": _linear_grad,
    "sum": _sum,
    "relu": _relu,
    "cross_entropy": _cross_entropy,
    "sgd": _sgd,
    "init": _init,
    "permutation": _permutation,
    "digest": _digest,
}
for family in FAMILIES:
    COMPUTE.update(family.COMPUTE)
