"""Products of groups of rows with a matrix each, SPEC.md, "Grouped products"."""

from collections.abc import Iterator

import numpy as np

from reference import formats, matmul


def _groups(offs: np.ndarray) -> Iterator[tuple[int, slice]]:
    for g, end in enumerate(offs):
        yield g, slice(0 if g == 0 else int(offs[g - 1]), int(end))


def forward(a: np.ndarray, b: np.ndarray, offs: np.ndarray, dtype: str, contract: str) -> np.ndarray:
    """a (T, K), b (G, K, N) -> (T, N)."""
    out: np.ndarray = np.zeros((len(a), b.shape[2]), formats.compute_type(dtype))
    for g, rows in _groups(offs):
        out[rows] = matmul.matmul(a[rows], b[g], dtype, contract)
    return out


def gradients(
    grad: np.ndarray, a: np.ndarray, b: np.ndarray, offs: np.ndarray, dtype: str, contract: str
) -> tuple[np.ndarray, np.ndarray]:
    """Those of a and b."""
    grad_a = forward(grad, np.swapaxes(b, 1, 2), offs, dtype, contract)
    grad_b = np.stack([matmul.matmul(a[rows].T, grad[rows], dtype, contract) for _, rows in _groups(offs)])
    return grad_a, grad_b
