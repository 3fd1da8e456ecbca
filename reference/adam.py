"""One step of Adam or AdamW on one parameter, SPEC.md, "Adam"."""

import math
from typing import NamedTuple

import numpy as np

from reference import formats


class State(NamedTuple):
    """The number of steps so far, and the averages, fp32, or binary64 for float64."""

    step: int
    m: np.ndarray
    v: np.ndarray
    largest: np.ndarray


def start(p: np.ndarray, dtype: str) -> State:
    """No step yet."""
    zero: np.ndarray = np.zeros(np.shape(p), formats.compute_type(dtype))
    return State(0, zero, zero, zero)


def power(base: float, exponent: int) -> float:
    """base^exponent in binary64, by repeated squaring from the lowest bit."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result = result * base
        base = base * base
        exponent //= 2
    return result


def step(
    p: np.ndarray,
    g: np.ndarray,
    state: State,
    dtype: str,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
    decoupled: bool = False,
) -> tuple[np.ndarray, State]:
    """The new parameter in `dtype` and the new state. decoupled: AdamW."""
    compute = formats.compute_type(dtype)
    p, g = np.asarray(p, compute), np.asarray(g, compute)
    t, (b1, b2) = state.step + 1, betas
    with np.errstate(all="ignore"):
        if maximize:
            g = -g
        if weight_decay != 0:
            if decoupled:
                p = p * compute(1 - lr * weight_decay)
            else:
                g = g + compute(weight_decay) * p
        m = state.m + (g - state.m) * compute(1 - b1)
        v = state.v * compute(b2) + compute(1 - b2) * (g * g)
        largest = np.where((v > state.largest) | np.isnan(v), v, state.largest) if amsgrad else state.largest
        root = compute(math.sqrt(1 - power(b2, t)))
        denominator = np.sqrt(largest if amsgrad else v) / root + compute(eps)
        rate = compute(lr / (1 - power(b1, t)))
        return formats.rounded(p - rate * (m / denominator), dtype), State(t, m, v, largest)
