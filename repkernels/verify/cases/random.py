"""Golden cases of draws and of dropout through their public functions."""

from collections.abc import Callable

import torch
from torch import Tensor

from repkernels import random
from repkernels.nn import functional, init
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands


def _drawn(draw: Callable[[Case, torch.device], Tensor]) -> Callable[[Case, torch.device], dict[str, Tensor]]:
    """What `draw` gives from the case's seed; the process's generator is left as it was."""

    def compute(case: Case, device: torch.device) -> dict[str, Tensor]:
        with random.fork_rng():
            random.manual_seed(case["seed"])
            return {"out": draw(case, device)}

    return compute


def _kind(case: Case) -> torch.dtype:
    return getattr(torch, case["dtype"])


def _uniform(case: Case, device: torch.device) -> Tensor:
    return random.uniform(case["shapes"][0], **case["options"], dtype=_kind(case), device=device)


def _normal(case: Case, device: torch.device) -> Tensor:
    return random.normal(case["shapes"][0], **case["options"], dtype=_kind(case), device=device)


def _bernoulli(case: Case, device: torch.device) -> Tensor:
    return random.bernoulli(case["options"]["p"], case["shapes"][0], dtype=_kind(case), device=device)


def _empty(case: Case, device: torch.device) -> Tensor:
    return torch.empty(case["shapes"][0], dtype=_kind(case), device=device)


def _trunc_normal(case: Case, device: torch.device) -> Tensor:
    return init.trunc_normal_(_empty(case, device), **case["options"])


def _orthogonal(case: Case, device: torch.device) -> Tensor:
    return init.orthogonal_(_empty(case, device), **case["options"])


def _sparse(case: Case, device: torch.device) -> Tensor:
    return init.sparse_(_empty(case, device), **case["options"])


def _randint(case: Case, device: torch.device) -> Tensor:
    return random.randint(**case["options"], shape=case["shapes"][0], device=device)


def _multinomial(case: Case, device: torch.device) -> Tensor:
    options = case["options"]
    return random.multinomial(operand(case, 0, device).abs(), options["n"], options["replacement"])


def _dropout(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    with random.fork_rng():
        random.manual_seed(case["seed"])
        out = getattr(functional, case["options"]["function"])(x, case["options"]["p"], True)
    (grad,) = torch.autograd.grad(out, x, operand({**case, "kind": "ordinary"}, 3, device, x.shape))
    return {"out": out, "grad": grad}


COMPUTE = {
    "uniform": _drawn(_uniform),
    "normal": _drawn(_normal),
    "bernoulli": _drawn(_bernoulli),
    "trunc_normal": _drawn(_trunc_normal),
    "orthogonal": _drawn(_orthogonal),
    "sparse": _drawn(_sparse),
    "randint": _drawn(_randint),
    "multinomial": _drawn(_multinomial),
    "dropout": _dropout,
}
