"""Losses of single elements on the CPU (SPEC.md, "Losses of elements"): one loop, compiled for each formula.

Formulas take x, y, the weight v of positive targets (1 without), and the loss's parameter; fp32 or fp64.
"""

import functools
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.divide import divide
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, numbers, put
from repkernels.cpu.rounded.exponential import exp, sigmoid, softplus
from repkernels.cpu.rounded.logarithm import log, log1p
from repkernels.cpu.rows import row_sum
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import BLOCK, LANES
from repkernels.cpu.threads import buffer
from repkernels.subnormals import subnormals_kept

# Beside fp64 they are widened.
ZERO, HALF, ONE, LOWEST_LOG, LEAST = F32(0), F32(0.5), F32(1), F32(-100), F32(1e-12)


@njit
def mse(x, y, v, parameter):
    d = x - y
    return d * d


@njit
def mse_gradient(x, y, v, parameter):
    d = x - y
    return d + d


@njit
def mse_curvature(x, y, v, parameter):
    return ONE + ONE


@njit
def l1(x, y, v, parameter):
    return abs(x - y)


@njit
def sign_of(d):
    """1, -1, +0 or NaN."""
    return ONE if d > ZERO else -ONE if d < ZERO else abs(d)


@njit
def l1_gradient(x, y, v, parameter):
    return sign_of(x - y)


@njit
def smooth_l1(x, y, v, beta):
    z = abs(x - y)
    return divide(z * HALF * z, beta) if z < beta else z - beta * HALF


@njit
def smooth_l1_gradient(x, y, v, beta):
    d = x - y
    return divide(d, beta) if abs(d) < beta else sign_of(d)


@njit
def smooth_l1_curvature(x, y, v, beta):
    z = abs(x - y)
    return divide(v, beta) if z < beta else ZERO if z == z else z


@njit
def huber(x, y, v, delta):
    z = abs(x - y)
    return z * HALF * z if z <= delta else delta * (z - delta * HALF)


@njit
def huber_gradient(x, y, v, delta):
    d = x - y
    return d if abs(d) <= delta else delta * sign_of(d)


@njit
def huber_curvature(x, y, v, delta):
    z = abs(x - y)
    return ONE if z <= delta else ZERO if z == z else z


@njit
def softplus_pair(x):
    """ln(1 + e^-x) and ln(1 + e^x): the smaller one is correctly rounded, the other is |x| more."""
    size = abs(x)
    small = softplus(-size)
    large = size + small
    return (large, small) if x < ZERO else (small, large)


@njit
def sigmoid_pair(x):
    """The sigmoids of -x and x: the smaller one is correctly rounded, the other is 1 minus it."""
    small = sigmoid(-abs(x))
    large = ONE - small
    return (large, small) if x < ZERO else (small, large)


@njit
def bce_with_logits(x, y, v, parameter):
    of_one, of_zero = softplus_pair(x)
    return v * y * of_one + (ONE - y) * of_zero


@njit
def bce_with_logits_gradient(x, y, v, parameter):
    below, above = sigmoid_pair(x)
    return (ONE - y) * above - v * y * below


@njit
def bce_with_logits_target_gradient(x, y, v, parameter):
    of_one, of_zero = softplus_pair(x)
    return v * of_one - of_zero


@njit
def bce_with_logits_curvature(x, y, v, parameter):
    below, above = sigmoid_pair(x)
    return ((ONE - y) + v * y) * (below * above)


@njit
def bounded(x):
    """x, but not below -100."""
    return LOWEST_LOG if x < LOWEST_LOG else x


@njit
def bce(x, y, v, parameter):
    return -(y * bounded(log(x)) + (ONE - y) * bounded(log1p(-x)))


@njit
def bce_gradient(x, y, v, parameter):
    d = (ONE - x) * x
    return divide(x - y, LEAST if d < LEAST else d)


@njit
def bce_target_gradient(x, y, v, parameter):
    return bounded(log1p(-x)) - bounded(log(x))


@njit
def kl_div(x, y, v, parameter):
    return -(x * y) + ZERO if y == ZERO else y * (log(y) - x)


@njit
def kl_div_gradient(x, y, v, parameter):
    return -y


@njit
def kl_div_target_gradient(x, y, v, parameter):
    return log(y) - x + ONE


@njit
def kl_div_log(x, y, v, parameter):
    return exp(y) * (y - x)


@njit
def kl_div_log_gradient(x, y, v, parameter):
    return -exp(y)


@njit
def kl_div_log_target_gradient(x, y, v, parameter):
    return exp(y) * (y - x + ONE)


@njit
def nll(x, y, v, parameter):
    return -(x * y)


@njit
def nll_gradient(x, y, v, parameter):
    return -y


FUNCTIONS = {
    "mse": mse,
    "mse_gradient": mse_gradient,
    "mse_curvature": mse_curvature,
    "l1": l1,
    "l1_gradient": l1_gradient,
    "smooth_l1": smooth_l1,
    "smooth_l1_gradient": smooth_l1_gradient,
    "smooth_l1_curvature": smooth_l1_curvature,
    "huber": huber,
    "huber_gradient": huber_gradient,
    "huber_curvature": huber_curvature,
    "bce_with_logits": bce_with_logits,
    "bce_with_logits_gradient": bce_with_logits_gradient,
    "bce_with_logits_target_gradient": bce_with_logits_target_gradient,
    "bce_with_logits_curvature": bce_with_logits_curvature,
    "bce": bce,
    "bce_gradient": bce_gradient,
    "bce_target_gradient": bce_target_gradient,
    "kl_div": kl_div,
    "kl_div_gradient": kl_div_gradient,
    "kl_div_target_gradient": kl_div_target_gradient,
    "kl_div_log": kl_div_log,
    "kl_div_log_gradient": kl_div_log_gradient,
    "kl_div_log_target_gradient": kl_div_log_target_gradient,
    "nll": nll,
    "nll_gradient": nll_gradient,
}


def elementwise(
    name: str,
    x: Tensor,
    y: Tensor,
    w: Tensor | None,
    v: Tensor | None,
    g: Tensor | None,
    parameter: float,
) -> Tensor:
    """FUNCTIONS[name] of x and y, times w, times g, rounded once to x's dtype; contiguous.

    x, y, w, v: contiguous, of one shape. v: the weight of positive targets. g: contiguous of that shape, or 0-d.
    """
    out = torch.empty_like(x)
    wide = _flat(out) if out.dtype in (torch.float32, torch.float64) else np.empty(x.numel(), np.float32)
    terms, kept = _terms(name, x, y, v), _kept(parameter, wide)
    spread(terms[0], x.numel(), 3 * x.numel(), 0, *terms[1:], kept, wide)
    for factor in (w, g):
        if factor is not None:
            spread(_times, x.numel(), 2 * x.numel(), 0, _flat(factor), wide)
    if out.dtype in (torch.bfloat16, torch.float16):
        spread(_round, x.numel(), x.numel(), wide, numbers(out.view(-1)))
    return out


def total(name: str, x: Tensor, y: Tensor, w: Tensor | None, v: Tensor | None, parameter: float) -> Tensor:
    """The SUM of FUNCTIONS[name] of x and y, times w, in row-major order -> (), fp32 or fp64."""
    n, wide = x.numel(), np.float64 if x.dtype == torch.float64 else np.float32
    sums = np.empty(max(1, -(-n // BLOCK)), wide)
    (loop, *arrays), kept = _terms(name, x, y, v), _kept(parameter, sums)
    weights = None if w is None else _flat(w)

    def blocks(start: int, stop: int) -> None:
        terms, lanes = buffer("losses", BLOCK, wide), buffer("lanes", LANES, wide)
        for block in range(start, stop):
            count = min(BLOCK, n - block * BLOCK)
            loop(0, count, block * BLOCK, *arrays, kept, terms)
            if weights is not None:
                _times(0, count, block * BLOCK, weights, terms)
            _sum(terms[:count], lanes[:LANES], sums[block : block + 1])

    spread(blocks, len(sums), 3 * n)
    result = np.empty(1, wide)
    _sum(sums, np.empty(LANES, wide), result)
    return torch.from_numpy(result)[0].clone()


def _flat(x: Tensor) -> np.ndarray:
    x = x.detach()
    return (x if x.dtype == torch.float64 else x.float()).view(-1).numpy()


def _terms(name: str, x: Tensor, y: Tensor, v: Tensor | None) -> tuple[Any, ...]:
    """The loop of a formula and what it reads, in the format of computation."""
    arrays = _flat(x), _flat(y)
    return _loop(name, v is not None), *arrays, arrays[0] if v is None else _flat(v)


def _kept(parameter: float, like: np.ndarray) -> np.ndarray:
    # In memory, since Numba rounds an fp32 argument once more, on the calling thread.
    with subnormals_kept():
        return np.array([parameter, 1], like.dtype)


@functools.cache
def _loop(name: str, positive: bool) -> Any:
    """The loop for the formula of this name, under a name of its own, by which Numba keeps what it compiled."""
    template = _with_positive if positive else _without_positive
    own = FunctionType(template.__code__, {**globals(), "call": FUNCTIONS[name]}, f"loss_{name}{template.__name__}")
    own.__qualname__ = own.__name__
    return kernel(own)


def _without_positive(start, stop, shift, x, y, v, scalars, out):
    state = keep_subnormals()
    parameter, one = scalars[0], scalars[1]
    for i in range(start, stop):
        out[i] = call(x[shift + i], y[shift + i], one, parameter)  # noqa: F821
    restore(state)


def _with_positive(start, stop, shift, x, y, v, scalars, out):
    state = keep_subnormals()
    parameter = scalars[0]
    for i in range(start, stop):
        out[i] = call(x[shift + i], y[shift + i], v[shift + i], parameter)  # noqa: F821
    restore(state)


@kernel
def _times(start, stop, shift, factor, out):
    """out *= factor, one for all or one for each."""
    state = keep_subnormals()
    if factor.size == 1:
        for i in range(start, stop):
            out[i] *= factor[0]
    else:
        for i in range(start, stop):
            out[i] *= factor[shift + i]
    restore(state)


@kernel
def _sum(terms, lanes, out):
    state = keep_subnormals()
    out[0] = row_sum(terms, lanes, np.empty(max(1, -(-terms.size // BLOCK)), terms.dtype))
    restore(state)


@kernel
def _round(start, stop, wide, out):
    state = keep_subnormals()
    for i in range(start, stop):
        put(out, i, wide[i])
    restore(state)
