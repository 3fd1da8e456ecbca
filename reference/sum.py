"""SUM: the one order of every sum that is not a contraction, SPEC.md, "Sums"."""

import numpy as np

from reference import formats

LANES = 1024
BLOCK = 65536


def tree(x: np.ndarray) -> np.ndarray:
    """SUM of x (n, ...) along its first axis, in the format of x, each addition rounded."""
    n = len(x)
    if n == 0:
        return np.zeros(x.shape[1:], x.dtype)
    with np.errstate(all="ignore"):
        if n > BLOCK:
            return tree(np.stack([tree(x[start : start + BLOCK]) for start in range(0, n, BLOCK)]))
        if n > LANES:
            lanes = x[:LANES].copy()
            for start in range(LANES, n, LANES):
                row = x[start : start + LANES]
                lanes[: len(row)] = lanes[: len(row)] + row
            x = lanes
        size = 1
        while size < len(x):
            size *= 2
        # x + -0 is x for every x, +0 and -0 included.
        padded = np.full((size, *x.shape[1:]), -0.0, x.dtype)
        padded[: len(x)] = x
        while size > 1:
            size //= 2
            padded = padded[:size] + padded[size:]
        return padded[0]


def sum_rows(x: np.ndarray, dtype: str) -> np.ndarray:
    """SUM over the first axis of x (R, N): half types are widened and the result rounded once."""
    with np.errstate(all="ignore"):
        return formats.rounded(tree(np.asarray(x, formats.compute_type(dtype))), dtype)


def sum_all(x: np.ndarray, dtype: str) -> np.ndarray:
    """SUM over every element in row-major order."""
    return sum_rows(np.asarray(x).reshape(-1, 1), dtype)[0]
