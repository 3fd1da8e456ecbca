"""Golden cases of pooling through their public functions."""

import math
from typing import Any

import torch
from torch import Tensor

from repkernels import random
from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand


def _function(case: Case) -> Any:
    return getattr(functional, f"{case['op']}{len(case['shapes'][0]) - 2}d")


def _with_gradient(case: Case, x: Tensor, out: Tensor) -> dict[str, Tensor]:
    grad = operand({**case, "kind": "ordinary"}, 3, x.device, out.shape)
    return {"out": out, "grad": torch.autograd.grad(out, x, grad)[0]}


def _input(case: Case, device: torch.device) -> Tensor:
    return operand(case, 0, device).requires_grad_()


def _max(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, options = _input(case, device), case["options"]
    if "output" in options:
        out, indices = _function(case)(x, options["output"], return_indices=True)
    else:
        window = (options["kernel"], options["stride"], options.get("padding", 0), options.get("dilation", 1))
        out, indices = _function(case)(x, *window, options.get("ceil", False), True)
    return _with_gradient(case, x, out) | {"indices": indices}


def _avg(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, options = _input(case, device), case["options"]
    if "output" in options:
        return _with_gradient(case, x, _function(case)(x, options["output"]))
    window = (options["kernel"], options["stride"], options.get("padding", 0), options.get("ceil", False))
    extra = {"divisor_override": options["divisor"]} if "divisor" in options else {}
    out = _function(case)(x, *window, count_include_pad=not options.get("inside", False), **extra)
    return _with_gradient(case, x, out)


def _lp(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, options = operand(case, 0, device).abs().requires_grad_(), case["options"]
    out = _function(case)(x, options["p"], options["kernel"], options["stride"], options.get("ceil", False))
    return _with_gradient(case, x, out)


def _unpool(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, kernel = _input(case, device), case["options"]["kernel"]
    places = math.prod(n * k for n, k in zip(x.shape[2:], kernel, strict=True))
    indices = inputs.targets(places, x.numel(), case["seed"], 1).view(x.shape).to(device)
    return _with_gradient(case, x, _function(case)(x, indices, kernel))


def _fractional(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, options = _input(case, device), case["options"]
    with random.fork_rng():
        random.manual_seed(case["seed"])
        out, indices = _function(case)(x, options["kernel"], options["output"], return_indices=True)
    return _with_gradient(case, x, out) | {"indices": indices}


COMPUTE = {
    "max_pool": _max,
    "avg_pool": _avg,
    "adaptive_max_pool": _max,
    "adaptive_avg_pool": _avg,
    "lp_pool": _lp,
    "max_unpool": _unpool,
    "fractional_max_pool": _fractional,
}
