"""Functions of one tensor beside a copy of as many bytes and torch's own."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import repkernels
from repkernels.nn import functional

from .registry import Run, Variant, Work, benchmark
from .tensors import COPY, copy_of, normal

Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "gelu": (torch.nn.functional.gelu, functional.gelu),
    "gelu tanh": (
        partial(torch.nn.functional.gelu, approximate="tanh"),
        partial(functional.gelu, approximate="tanh"),
    ),
    "silu": (torch.nn.functional.silu, functional.silu),
    "exp": (torch.exp, repkernels.exp),
    "tanh": (torch.tanh, repkernels.tanh),
    "sigmoid": (torch.sigmoid, repkernels.sigmoid),
    "log": (torch.log, repkernels.log),
    "sin": (torch.sin, lambda x: repkernels.sin(x)),
    "erf": (torch.erf, repkernels.erf),
    "mish": (torch.nn.functional.mish, functional.mish),
    "softplus": (torch.nn.functional.softplus, functional.softplus),
}


@benchmark("unary")
def unary(device: torch.device, quick: bool) -> Iterator[Work]:
    """2^28 elements on a GPU, 2^22 on a CPU, bf16 and fp32. torch's functions are not correctly rounded."""
    gpu = device.type == "cuda"
    count = (2**24 if quick else 2**28) if gpu else 2**20 if quick else 2**22
    for name in ("gelu", "exp") if quick else FUNCTIONS:
        for dtype in (torch.bfloat16, torch.float32):
            yield Work(
                name=f"{name} {str(dtype).removeprefix('torch.')}",
                group=str(dtype).removeprefix("torch."),
                operands=partial(normal, device, dtype, count),
                variants=[
                    copy_of(2 * count * dtype.itemsize, device),
                    Variant("torch", partial(_run, FUNCTIONS[name][0])),
                    Variant("repkernels", partial(_run, FUNCTIONS[name][1])),
                ],
                baseline=COPY,
                operations=count,
                traffic=2 * count * dtype.itemsize,
                sizes={"elements": count},
            )


def _run(function: Function, x: Tensor) -> Run:
    return lambda i: function(x)
