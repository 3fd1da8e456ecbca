"""Linear layers with int8 weights, SPEC.md, "int8 weights"."""

import numpy as np

from reference import matmul


def quantize(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers (N, K) and scales (N,) of weight (N, K)."""
    scale = np.abs(weight).max(1, initial=0).astype(np.float32) / np.float32(127)
    with np.errstate(all="ignore"):
        q = np.clip(np.rint(weight / scale[:, None]), -127, 127)
    return np.where(scale[:, None] == 0, 0, q).astype(np.int64), scale


def forward(
    x: np.ndarray, weight: np.ndarray, scale: np.ndarray, bias: np.ndarray | None, dtype: str, contract: str
) -> np.ndarray:
    """x (M, K), integers (N, K), scales and bias (N,) -> (M, N)."""
    exponent, q = matmul.quantize(x, matmul.DIGITS[contract])
    total = q.astype(object) @ weight.T.astype(object)
    rounded = np.frompyfunc(matmul.round32, 1, 1)(total).astype(np.float32)
    r = matmul.scaled(rounded, np.broadcast_to(exponent[:, None], rounded.shape))
    touched, value = matmul.non_finite(x, weight.T.astype(np.float32))
    with np.errstate(all="ignore"):
        r = np.where(touched, value, r) * scale[None, :]
    return matmul.stored(r, bias, dtype)
