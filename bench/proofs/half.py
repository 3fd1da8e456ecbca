"""The half types' own sequences over all of their inputs: RN16(RN32(f(x))), as if the correctly rounded fp32 function
had been rounded once more. In Triton's interpreter where there is no GPU."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from reference import unary

from .library import by_triton
from .measure import measure

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def names(module: ModuleType) -> list[str]:
    """Its sequences: FUNCTION_FORMAT."""
    parts = {name: name.rpartition("_") for name in dir(module)}
    return [name for name, (function, _, form) in parts.items() if form in DTYPES and function in unary.FUNCTIONS]


def prove(device: torch.device) -> dict[str, Any]:
    """A record per sequence."""
    from repkernels.kernels.rounded import half

    found: dict[str, Any] = {name: prove_one(name, device) for name in names(half)}
    return {**found, "holds": not any(record["wrong"] for record in found.values())}


def prove_one(name: str, device: torch.device) -> dict[str, Any]:
    """How many inputs a sequence has, how many of its results are wrong, and where."""
    function, _, form = name.rpartition("_")
    dtype = DTYPES[form]
    halves = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    patterns = halves.float().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    right, distance = (v.cpu() for v in measure(function, patterns, device))
    for i in (distance == 0).nonzero()[:, 0].tolist():
        right[i] = torch.tensor(unary.value(function, int(patterns[i]))).to(torch.int32)
    actual = by_triton(name, patterns, device).cpu()
    wrong = (_bits(right, dtype) != _bits(actual, dtype)).nonzero()[:, 0]
    return {
        "inputs": len(patterns),
        "wrong": len(wrong),
        "wrong_at": [f"{int(b) & 0xFFFF:04x}" for b in halves.view(torch.int16)[wrong[:64]]],
    }


def _bits(single: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits of fp32 bits rounded to a half type, every NaN as one."""
    rounded = single.view(torch.float32).to(dtype)
    return torch.where(rounded.isnan(), 0x7FFF, rounded.view(torch.int16))
