"""div, lerp, addcmul, addcdiv, SPEC.md, "Elementwise operations": of fp32 or fp64 arrays, in their format."""

from collections.abc import Callable

import numpy as np

from reference.fma import fma64

Arrays = tuple[np.ndarray, ...]


def div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a / b


def div_trunc(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.trunc(a / b)


def div_floor(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found = [_floor(float(x), float(y)) for x, y in np.broadcast(a, b)]
    return np.array(found).reshape(np.broadcast(a, b).shape).astype(a.dtype)


def _floor(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        q = float(np.float64(a) / np.float64(b))
    if np.isnan(a) or np.isnan(b) or b == 0:
        return q
    if np.isinf(a):
        return np.nan
    if np.isinf(b):
        return -1.0 if a != 0 and (a < 0) != (b < 0) else q
    n = float(np.floor(q))
    rest = fma64(-n, b, a)
    if rest != 0 and (rest < 0) != (b < 0):
        n -= 1
    return n if n != 0 else q * 0.0


def lerp(start: np.ndarray, end: np.ndarray, weight: np.ndarray) -> np.ndarray:
    d = end - start
    one = start.dtype.type(1)
    return np.where(np.abs(weight) < 0.5, start + weight * d, end - d * (one - weight))


def addcmul(x: np.ndarray, a: np.ndarray, b: np.ndarray, value: np.ndarray) -> np.ndarray:
    return x + (value * a) * b


def addcdiv(x: np.ndarray, a: np.ndarray, b: np.ndarray, value: np.ndarray) -> np.ndarray:
    return x + value * (a / b)


def div_gradients(g: np.ndarray, a: np.ndarray, b: np.ndarray) -> Arrays:
    return g / b, -(g * ((a / b) / b))


def lerp_gradients(g: np.ndarray, start: np.ndarray, end: np.ndarray, weight: np.ndarray) -> Arrays:
    return g * (start.dtype.type(1) - weight), g * weight, g * (end - start)


def addcmul_gradients(g: np.ndarray, x: np.ndarray, a: np.ndarray, b: np.ndarray, value: np.ndarray) -> Arrays:
    return g, g * (value * b), g * (value * a)


def addcdiv_gradients(g: np.ndarray, x: np.ndarray, a: np.ndarray, b: np.ndarray, value: np.ndarray) -> Arrays:
    return g, g * (value / b), -(g * (value * ((a / b) / b)))


FORWARD: dict[str, Callable[..., np.ndarray]] = {
    "div": div, "div_floor": div_floor, "div_trunc": div_trunc, "lerp": lerp, "addcmul": addcmul, "addcdiv": addcdiv,
}  # fmt: skip
GRADIENTS: dict[str, Callable[..., Arrays]] = {
    "div": div_gradients, "lerp": lerp_gradients, "addcmul": addcmul_gradients, "addcdiv": addcdiv_gradients,
}  # fmt: skip
