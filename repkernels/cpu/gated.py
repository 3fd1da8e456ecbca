"""Gated activations and the soft cap, of fp32 numbers (SPEC.md, "Gated activations"), as in kernels/gated.py.

The activation is rounded to the operands' type before it is multiplied, as it would be stored: each type has its own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit

from repkernels.cpu.activations import inlined
from repkernels.cpu.derivatives import gelu_gradient, gelu_tanh_gradient, silu_gradient
from repkernels.cpu.divide import divide
from repkernels.cpu.functions import _from_bf16, _from_fp16, _to_bf16, _to_fp16
from repkernels.cpu.rounded.error import gelu, gelu_tanh
from repkernels.cpu.rounded.exponential import silu, tanh

ONE = np.float32(1)


@njit
def as_fp32(x):
    return x


@njit
def as_bf16(x):
    return _from_bf16(_to_bf16(x))


@njit
def as_fp16(x):
    return _from_fp16(_to_fp16(x))


def _gated(activation: Any, stored: Any) -> Callable[..., Any]:
    return inlined(lambda gate, up: stored(activation(gate)) * up)


def _gate_gradient(gradient: Any, stored: Any) -> Callable[..., Any]:
    return inlined(lambda g, gate, up: gradient(stored(g * up), gate))


@inlined
def softcap(x, value):
    return tanh(divide(x, value)) * value


@inlined
def softcap_gradient(g, x, value):
    t = tanh(divide(x, value))
    return g * (ONE - t * t)


_ACTIVATIONS = {
    "swiglu": (silu, silu_gradient),
    "geglu": (gelu, gelu_gradient),
    "geglu_tanh": (gelu_tanh, gelu_tanh_gradient),
}
_STORED = {torch.float32: ("", as_fp32), torch.bfloat16: ("_bf16", as_bf16), torch.float16: ("_fp16", as_fp16)}

FUNCTIONS = {"softcap": softcap, "softcap_gradient": softcap_gradient}
# The names of those with the roundings of a half type.
HALF = {}
for _name, (_activation, _slope) in _ACTIVATIONS.items():
    for _dtype, (_suffix, _rounding) in _STORED.items():
        FUNCTIONS[f"{_name}{_suffix}"] = _gated(_activation, _rounding)
        FUNCTIONS[f"{_name}_gate_gradient{_suffix}"] = _gate_gradient(_slope, _rounding)
        if _suffix:
            HALF[_name, _dtype] = f"{_name}{_suffix}"
            HALF[f"{_name}_gate_gradient", _dtype] = f"{_name}_gate_gradient{_suffix}"
