"""Activations of single rounded steps, SPEC.md, "Elementwise operations": of fp32 or fp64 arrays, in their format.

`forward(name, x, ...)` also takes the names of reference/unary.py.
"""

from collections.abc import Callable

import numpy as np

from reference import formats, unary

ROUNDED = tuple(name for name in unary.FUNCTIONS if name not in ("softplus", "elu"))


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x / y


def of(x: np.ndarray, value: float) -> np.ndarray:
    """A scalar in the format of x."""
    return x.dtype.type(value)


def hardtanh(x: np.ndarray, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.where(x < of(x, low), of(x, low), np.where(x > of(x, high), of(x, high), x))


def leaky_relu(x: np.ndarray, slope: float = 0.01) -> np.ndarray:
    return np.where(x > 0, x, x * of(x, slope))


def threshold(x: np.ndarray, limit: float, value: float) -> np.ndarray:
    return np.where(x <= of(x, limit), of(x, value), x)


def hardswish(x: np.ndarray) -> np.ndarray:
    inside = divide(x * (x + of(x, 3)), of(x, 6))
    return np.where(x <= -3, of(x, 0), np.where(x >= 3, x, inside))


def hardsigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x <= -3, of(x, 0), np.where(x >= 3, of(x, 1), divide(x + of(x, 3), of(x, 6))))


def softsign(x: np.ndarray) -> np.ndarray:
    return divide(x, np.abs(x) + of(x, 1))


def hardshrink(x: np.ndarray, limit: float = 0.5) -> np.ndarray:
    return np.where(np.abs(x) <= of(x, limit), of(x, 0), x)


def softshrink(x: np.ndarray, limit: float = 0.5) -> np.ndarray:
    moved = np.where(x < 0, x + of(x, limit), x - of(x, limit))
    return np.where(np.abs(x) <= of(x, limit), of(x, 0), moved)


def softplus(x: np.ndarray, beta: float = 1.0, limit: float = 20.0) -> np.ndarray:
    v = x * of(x, beta)
    return np.where(v > of(x, limit), x, divide(unary.forward("softplus", v), of(x, beta)))


def logsigmoid(x: np.ndarray) -> np.ndarray:
    return -unary.forward("softplus", -x)


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, of(x, alpha) * unary.forward("expm1", x))


def celu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, of(x, alpha) * unary.forward("expm1", divide(x, of(x, alpha))))


def tanhshrink(x: np.ndarray) -> np.ndarray:
    return x - unary.forward("tanh", x)


def prelu(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, x * weight)


def glu(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * unary.forward("sigmoid", b)


FORMULAS: dict[str, Callable[..., np.ndarray]] = {
    "hardtanh": hardtanh, "leaky_relu": leaky_relu, "threshold": threshold, "hardswish": hardswish,
    "hardsigmoid": hardsigmoid, "softsign": softsign, "hardshrink": hardshrink, "softshrink": softshrink,
    "softplus": softplus, "logsigmoid": logsigmoid, "elu": elu, "celu": celu, "tanhshrink": tanhshrink,
    "prelu": prelu, "glu": glu,
}  # fmt: skip


def forward(name: str, dtype: str, *operands: np.ndarray, **scalars: float) -> np.ndarray:
    """The result in `dtype` of operands in its format of computation."""
    with np.errstate(all="ignore"):
        exact = unary.forward(name, *operands) if name in ROUNDED else FORMULAS[name](*operands, **scalars)
        return formats.rounded(exact, dtype)
