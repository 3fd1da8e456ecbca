"""Mixtures of experts, SPEC.md, section of this name: token by token."""

from typing import Any

import numpy as np

from reference import formats, gated, matmul, softmax
from reference import sum as summation


def router(logits: np.ndarray, k: int, norm: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights (T, k) fp32, experts (T, k), of logits (T, E)."""
    probabilities = softmax.forward(logits, "float32")
    experts = np.stack([_largest(row, k) for row in probabilities]) if len(logits) else np.zeros((0, k), np.int64)
    weights = np.take_along_axis(probabilities, experts, 1)
    if norm:
        with np.errstate(all="ignore"):
            weights = weights / summation.sum_rows(weights.T, "float32")[:, None]
    return weights, experts


def _largest(row: np.ndarray, k: int) -> np.ndarray:
    """NaN above all; equal ones by index."""
    value = np.where(np.isnan(row), np.inf, row.astype(np.float64))
    return np.argsort(-value, kind="stable")[:k]


def forward(
    x: np.ndarray,
    experts: np.ndarray,
    weights: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    activation: str,
    dtype: str,
    contract: str,
) -> np.ndarray:
    """x (T, H) -> (T, H)."""
    out, half = np.empty_like(x), gate_up.shape[1] // 2
    for t, row in enumerate(x):
        total: Any = None
        for expert, weight in zip(experts[t], weights[t], strict=True):
            if 0 <= expert < len(gate_up):
                mixed = matmul.matmul(row[None], gate_up[expert].T, dtype, contract)
                h = gated.forward(activation, mixed[:, :half], mixed[:, half:], dtype)
                y = matmul.matmul(h, down[expert].T, dtype, contract)[0]
            else:
                y = np.zeros_like(row)
            with np.errstate(all="ignore"):
                y = y * np.float32(weight)
                total = y if total is None else total + y
        out[t] = formats.rounded(total, dtype)
    return out
