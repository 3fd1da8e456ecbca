"""Gated activations and the soft cap, SPEC.md, "Gated activations"."""

import numpy as np

from reference import activations, derivatives, formats, unary

ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}


def forward(name: str, gate: np.ndarray, up: np.ndarray, dtype: str) -> np.ndarray:
    """act(gate) * up, each rounded to `dtype`."""
    with np.errstate(all="ignore"):
        return formats.rounded(activations.forward(ACTIVATIONS[name], dtype, gate) * up, dtype)


def gradients(name: str, g: np.ndarray, gate: np.ndarray, up: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Those of gate and up."""
    activation = ACTIVATIONS[name]
    with np.errstate(all="ignore"):
        h = activations.forward(activation, dtype, gate)
        upstream = formats.rounded(g * up, dtype)
        of_gate = derivatives.gradient(activation, dtype, upstream, gate, h)
        return of_gate, formats.rounded(g * h, dtype)


def softcap(x: np.ndarray, cap: float, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return formats.rounded(unary.forward("tanh", x / np.float32(cap)) * np.float32(cap), dtype)


def softcap_gradient(g: np.ndarray, x: np.ndarray, cap: float, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        t = unary.forward("tanh", x / np.float32(cap))
        return formats.rounded(g * (np.float32(1) - t * t), dtype)
