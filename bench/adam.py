"""A step of AdamW over a flat list of parameters, beside torch's fused AdamW and a copy of as many bytes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repkernels import optim

from .registry import Run, Variant, Work, benchmark
from .tensors import copy_of, normal

TENSORS = 64


@benchmark("adam")
def adam(device: torch.device, quick: bool) -> Iterator[Work]:
    """1e9 fp32 parameters in 64 tensors on a GPU, 4e6 on a CPU: 28 bytes each."""
    gpu = device.type == "cuda"
    count = (16 * 10**6 if quick else 10**9) if gpu else 4 * 10**6
    size = count // TENSORS
    traffic = 28 * size * TENSORS
    yield Work(
        name=f"AdamW {count} float32",
        group="adam",
        operands=partial(_parameters, device, size),
        variants=[
            copy_of(traffic, device),
            Variant("torch fused", partial(_steps, partial(torch.optim.AdamW, fused=True))),
            Variant("repkernels", partial(_steps, optim.AdamW)),
        ],
        baseline="torch fused",
        operations=size * TENSORS,
        traffic=traffic,
        sizes={"parameters": size * TENSORS},
    )


def _parameters(device: torch.device, size: int) -> list[Tensor]:
    found: list[Tensor] = []
    for k in range(TENSORS):
        parameter = torch.nn.Parameter(normal(device, torch.float32, size, seed=k))
        parameter.grad = normal(device, torch.float32, size, seed=TENSORS + k)
        found.append(parameter)
    return found


def _steps(optimizer: Any, parameters: list[Tensor]) -> Run:
    made = optimizer(parameters, lr=1e-3)
    return lambda i: made.step()
