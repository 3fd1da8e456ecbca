"""Gated activations and the soft cap of logits (SPEC.md, "Gated activations"): elementwise operations, one pass each.

y = act(gate) * up, act(gate) rounded to the operands' type before it is multiplied: the bits of silu or gelu and a
product, one after the other. Their gradients are those of the two, rounded in the same places.
"""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks, derivatives
from repkernels.ops.elementwise import RULES, Rule, elementwise
from repkernels.ops.unary import DTYPES


def _softcap_curvature(x: Tensor, call: Any) -> Tensor:
    y = elementwise("tanh", elementwise("div", x, s=call.s))
    return elementwise("div", -2 * y * (1 - y * y), s=call.s)


derivatives._add_argument("softcap", "softcap_gradient", _softcap_curvature)


def _add_gated(name: str, activation: str) -> None:
    gate_gradient = f"{name}_gate_gradient"
    curvature = derivatives.OF_ARGUMENT[activation]
    assert curvature is not None
    RULES[name] = Rule(
        "ab",
        (
            lambda g, v: elementwise(gate_gradient, g, v.a, v.b),
            lambda g, v: elementwise(name, v.a, g),
        ),
    )
    RULES[gate_gradient] = Rule(
        "abc",
        (
            lambda g, v: elementwise(gate_gradient, g, v.b, v.c),
            lambda g, v: g * v.a * v.c * curvature(v.b, v),
            lambda g, v: elementwise(gate_gradient, v.a, v.b, g),
        ),
    )


for _name, _activation in (("swiglu", "silu"), ("geglu", "gelu"), ("geglu_tanh", "gelu_tanh")):
    _add_gated(_name, _activation)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """silu(gate) * up, with the bits of these two operations, in one pass.

    gate, up: fp32, bf16 or fp16, of one shape, dtype and device, any strides. Without `up` the last axis of `gate`
    holds both halves, the gate first. Result: their shape and dtype.
    Bits: RN(RN(silu(gate)) * up), each rounded to the dtype (SPEC.md, "Gated activations"). Gradients: of up
    RN(g * RN(silu(gate))), of gate that of silu for RN(g * up), rounded likewise.
    Raises RuntimeError for shapes, dtypes, devices that do not fit, NotImplementedError for other dtypes.
    """
    return _gated("swiglu", gate, up)


def geglu(gate: Tensor, up: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    """gelu(gate, approximate) * up, otherwise as `swiglu`. Raises RuntimeError for another `approximate`."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"approximate: expected 'none' or 'tanh', got {approximate!r}")
    return _gated("geglu" if approximate == "none" else "geglu_tanh", gate, up)


def _gated(name: str, gate: Tensor, up: Tensor | None) -> Tensor:
    checks.operand("gate", gate, DTYPES)
    if up is None:
        if gate.ndim == 0 or gate.shape[-1] % 2:
            raise RuntimeError(f"gate: without up its last size must be even, got shape {tuple(gate.shape)}")
        half = gate.shape[-1] // 2
        gate, up = gate[..., :half], gate[..., half:]
    else:
        checks.operand("up", up, DTYPES)
        checks.same("up", up, "gate", gate)
        if up.shape != gate.shape:
            raise RuntimeError(f"up: expected gate's shape {tuple(gate.shape)}, got {tuple(up.shape)}")
    return elementwise(name, gate, up)


def softcap(input: Tensor, cap: float) -> Tensor:
    """RN(RN(tanh(RN(x / cap))) * cap): logits moved smoothly into -cap .. cap, in fp32, rounded to the dtype once.

    input: fp32, bf16 or fp16, any shape and strides. cap: positive, rounded to fp32 once. tanh is correctly rounded.
    Gradient: with t that tanh, RN(g * RN(1 - RN(t * t))).
    Raises ValueError for a cap that is not positive and finite, NotImplementedError for other dtypes.
    """
    checks.operand("input", input, DTYPES)
    value = checks.number("cap", cap)
    if not (torch.compiler.is_compiling() or 0 < value < float("inf")):
        raise ValueError(f"cap: expected a positive number, got {cap}")
    return elementwise("softcap", input, s=value)
