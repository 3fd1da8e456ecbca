"""Attention put together from products, and multi-head attention, SPEC.md, "Attention from products"."""

import math

import numpy as np

from reference import formats, matmul, softmax
from reference.sum import sum_rows

ZERO = np.float32(0)


def forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, dtype: str, contract: str,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The result (B, L, Ev) and the weights (B, L, S) of q (B, L, E), k (B, S, E), v (B, S, Ev).

    mask: (L, S) or (B, L, S), what is added to the scores, -inf where a key takes no part.
    """
    with np.errstate(all="ignore"):
        s = formats.rounded(matmul.matmul(q, k.swapaxes(-1, -2), dtype, contract) * _scale(q, scale), dtype)
    alone = np.zeros((*s.shape[:-1], 1), bool)
    if mask is not None:
        with np.errstate(all="ignore"):
            s = formats.rounded(s + mask, dtype)
        alone = (s == -math.inf).all(-1, keepdims=True)
    w = np.where(alone, ZERO, softmax.along(np.where(alone, ZERO, s), dtype, -1))
    return matmul.matmul(w, v, dtype, contract), w


def backward(
    grad: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, w: np.ndarray, dtype: str, contract: str,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """The gradients of q, k and v under the gradient contract, from that of the result."""
    grad_w, grad_v = matmul.gradients(grad, w, v, dtype, contract)
    rows = softmax.backward(grad_w.reshape(-1, w.shape[-1]), w.reshape(-1, w.shape[-1]), dtype)
    with np.errstate(all="ignore"):
        grad_s = formats.rounded(rows.reshape(w.shape) * _scale(q, scale), dtype)
    grad_s = np.where((w == 0).all(-1, keepdims=True), ZERO, grad_s)  # marked rows; in others the weights' sum is 1
    grad_q, grad_k = matmul.gradients(grad_s, q, k.swapaxes(-1, -2), dtype, contract)
    return grad_q, grad_k.swapaxes(-1, -2), grad_v


def _scale(q: np.ndarray, scale: float | None) -> np.float32:
    return np.float32(1 / math.sqrt(q.shape[-1]) if scale is None else scale)


def of_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """(L, N, E) -> (N * heads, L, E / heads)."""
    return x.reshape(len(x), x.shape[1] * heads, -1).swapaxes(0, 1)


def of_positions(x: np.ndarray, batch: int) -> np.ndarray:
    """(N * heads, L, E / heads) -> (L, N, E)."""
    return x.swapaxes(0, 1).reshape(x.shape[1], batch, -1)


def self_attention(
    x: np.ndarray, weights: dict[str, np.ndarray], heads: int, mask: np.ndarray | None, dtype: str,
    contract: tuple[str, str], grad: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Multi-head attention of x (L, N, E) over itself: result, weights averaged over heads, gradients from `grad`.

    weights: in_proj_weight (3E, E), in_proj_bias (3E,), out_proj.weight (E, E), out_proj.bias (E,).
    """
    forward_rule, gradient_rule = contract
    length, batch, width = x.shape
    scale = math.sqrt(1.0 / (width // heads))
    projected = matmul.linear(x, weights["in_proj_weight"], weights["in_proj_bias"], dtype, forward_rule)
    q, k, v = (of_heads(part, heads) for part in np.split(projected, 3, -1))
    attended, w = forward(q, k, v, mask, dtype, forward_rule, scale)
    inner = of_positions(attended, batch)
    out = matmul.linear(inner, weights["out_proj.weight"], weights["out_proj.bias"], dtype, forward_rule)
    grad_inner, grad_out_weight = matmul.gradients(grad, inner, weights["out_proj.weight"].T, dtype, gradient_rule)
    parts = backward(of_heads(grad_inner, heads), q, k, v, w, dtype, gradient_rule, scale)
    grad_projected = np.concatenate([of_positions(part, batch) for part in parts], -1)
    grad_x, grad_in_weight = matmul.gradients(grad_projected, x, weights["in_proj_weight"].T, dtype, gradient_rule)
    by_head = w.reshape(batch, heads, length, length).swapaxes(0, 1)
    averaged = sum_rows(by_head.reshape(heads, -1), "float32") / np.float32(heads)
    return {
        "out": out,
        "weights": formats.rounded(averaged.reshape(batch, length, length), dtype),
        "x": grad_x,
        "in_proj_weight": grad_in_weight.T,
        "in_proj_bias": matmul.bias_gradient(grad_projected, dtype),
        "out_proj.weight": grad_out_weight.T,
        "out_proj.bias": matmul.bias_gradient(grad, dtype),
    }
