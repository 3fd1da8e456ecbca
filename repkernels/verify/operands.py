"""The operands of golden cases as tensors on a device."""

import torch
from torch import Tensor

from repkernels.verify import inputs
from repkernels.verify.catalogue import Case


def operand(case: Case, stream: int, device: torch.device, shape: tuple[int, ...] | None = None) -> Tensor:
    """Operand number `stream` of a case; `shape` where the case does not list one for it."""
    shape = tuple(case["shapes"][stream]) if shape is None else tuple(shape)
    return inputs.operand(case["kind"], case["dtype"], shape, case["seed"], stream).to(device)


def operands(case: Case, device: torch.device, requires_grad: bool = False) -> list[Tensor]:
    """The operands whose shapes the case lists."""
    streams = range(len(case["shapes"]))
    return [operand(case, stream, device).requires_grad_(requires_grad) for stream in streams]
