"""The contract in force under a compiler, where it is known only when the compiled code runs.

One operation then reads it into a token, the number of the pair; contractions and their gradients take the token.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.contract import NAMES, Contract, resolve_at_run_time
from repkernels.ops.operation import operation

PAIRS = tuple(Contract(f, g) for f in NAMES for g in NAMES)
NUMBER = {pair: i for i, pair in enumerate(PAIRS)}
# Saved beside the operands: an activation checkpoint whose second run follows another contract then saves a tensor of
# another shape than the first did, which torch.utils.checkpoint refuses.
MARKS = tuple(torch.empty((i, 0), dtype=torch.uint8) for i in range(len(PAIRS)))


def mark(forward: str, gradient: str) -> Tensor | None:
    """What is saved beside the operands; a tracer cannot hold a tensor that is not of its own making."""
    return None if torch._C._len_torch_dispatch_stack() else MARKS[NUMBER[Contract(forward, gradient)]]


def _run(a: Tensor) -> Tensor:
    return torch.tensor(NUMBER[resolve_at_run_time(a.dtype, a.device.type)], dtype=torch.uint8)


def _fake(a: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.uint8, device="cpu")


def _setup(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    pass


def _backward(ctx: Any, grad: None) -> None:
    return None


def _vmap(info: Any, in_dims: tuple[int], a: Tensor) -> tuple[Tensor, None]:
    return contract_in_force(a), None


contract_in_force = operation("contract_in_force", _run, _fake, _setup, _backward, _vmap)
