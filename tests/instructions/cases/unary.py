"""Elementwise operations: a few functions everywhere, every one on sm_90."""

import inspect
from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import elementwise
from tests.instructions.case import Case, everything, tensor

FEW = ("exp", "gelu", "tanh_gradient", "gelu_gradient", "div_floor", "lerp", "softplus")
WIDE = ("div", "div_floor", "div_trunc", "lerp", "addcdiv", "hardswish", "softsign_gradient")
SCALARS = ("s", "t", "low", "high", "slope", "limit", "value", "beta", "alpha")


def _launch(name: str, dtype: torch.dtype, odd: bool = False, strided: bool = False) -> None:
    parameters = inspect.signature(elementwise.FUNCTIONS[name].fn).parameters
    count = sum(parameter not in SCALARS for parameter in parameters)
    n = 1001 if odd else 1024
    operands = [tensor(48, n, dtype=dtype, odd=odd) for _ in range(count)]
    if strided:
        operands[-1] = operands[-1][:, :1]
    elementwise.elementwise(name, operands, (0.5, 1.0), torch.empty(48, n, dtype=dtype))


def cases(target: str) -> Iterator[Case]:
    """Without gaps and with strides, aligned and not, fp32, half types and fp64."""
    for name in elementwise.FUNCTIONS if everything(target) else FEW:
        yield Case(f"elementwise {name}", partial(_launch, name, torch.float32))
    for name, dtype in elementwise.HALF:
        if everything(target):
            yield Case(f"elementwise {name} {dtype}", partial(_launch, name, dtype))
    yield Case("elementwise odd", partial(_launch, "silu", torch.bfloat16, odd=True))
    yield Case("elementwise strided", partial(_launch, "div", torch.bfloat16, strided=True))
    if everything(target):
        yield Case("elementwise strided, odd", partial(_launch, "lerp", torch.float32, odd=True, strided=True))
        for name in WIDE:
            yield Case(f"elementwise {name} float64", partial(_launch, name, torch.float64))
