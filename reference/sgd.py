"""One step of SGD on one parameter, SPEC.md, "SGD"."""

import numpy as np

from reference import formats


def step(
    p: np.ndarray,
    g: np.ndarray,
    v: np.ndarray | None,
    dtype: str,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The new parameter in `dtype` and the new momentum (fp32, or binary64 for float64); v is None before the first."""
    compute = formats.compute_type(dtype)
    p, g = np.asarray(p, compute), np.asarray(g, compute)
    if maximize:
        g = -g
    with np.errstate(all="ignore"):
        if weight_decay != 0:
            g = g + compute(weight_decay) * p
        if momentum != 0:
            v = g if v is None else compute(momentum) * v + compute(1 - dampening) * g
            g = g + compute(momentum) * v if nesterov else v
        return formats.rounded(p - compute(lr) * g, dtype), v
