"""The terms of the sums of reductions (SPEC.md, "Reductions"), and what is done with a sum."""

import numpy as np
from numba import njit, types
from numba.extending import overload

from repkernels.cpu.divide import divide
from repkernels.cpu.functions import exp_f32, ln_f32

TERMS = {
    name: number
    for number, name in enumerate(
        ("value", "magnitude", "square", "deviation", "exponential", "nonzero", "tie", "magnitude tie")
    )
}
VALUE, MAGNITUDE, SQUARE, DEVIATION, EXPONENTIAL, NONZERO, TIE, MAGNITUDE_TIE = range(len(TERMS))
FINISHES = {name: number for number, name in enumerate(("sum", "mean", "root", "mean root", "logarithm"))}
MEAN, ROOT, MEAN_ROOT, LOGARITHM = range(1, len(FINISHES))


@njit
def make_terms(kind, v, c):
    """v[j] = the term of v[j], whose column has the center c[j]."""
    if kind == MAGNITUDE:
        for j in range(v.size):
            v[j] = abs(v[j])
    elif kind == SQUARE:
        for j in range(v.size):
            v[j] = v[j] * v[j]
    elif kind == DEVIATION:
        for j in range(v.size):
            d = v[j] - c[j]
            v[j] = d * d
    elif kind == EXPONENTIAL:
        for j in range(v.size):
            v[j] = exponential(v[j] - c[j])
    elif kind == NONZERO:
        for j in range(v.size):
            v[j] = v[j] != 0
    elif kind == TIE:
        for j in range(v.size):
            v[j] = tie(v[j], c[j])
    elif kind == MAGNITUDE_TIE:
        for j in range(v.size):
            v[j] = tie(abs(v[j]), c[j])


@njit
def tie(a, b):
    """Whether a stands for the extreme b: equal numbers, whatever the signs of zeros, or both NaN."""
    return (a == b) | ((a != a) & (b != b))


@njit
def finished(kind, total, center, divisor):
    """What becomes of the SUM of a column."""
    if kind == MEAN:
        return divide(total, divisor)
    if kind == ROOT:
        return np.sqrt(total)
    if kind == MEAN_ROOT:
        return np.sqrt(divide(total, divisor))
    if kind == LOGARITHM:
        # A maximum that is an infinity or NaN is the result; of nothing it is -inf.
        return center + logarithm(total) if abs(center) < np.inf else center
    return total


def exponential(x):
    """exp_f32; there is none of binary64, and no caller wants one."""
    raise NotImplementedError("only inside compiled code")


def logarithm(x):
    """ln_f32, likewise."""
    raise NotImplementedError("only inside compiled code")


@overload(exponential)
def _exponential(x):
    return (lambda x: exp_f32(x)) if x == types.float32 else (lambda x: x)


@overload(logarithm)
def _logarithm(x):
    return (lambda x: ln_f32(x)) if x == types.float32 else (lambda x: x)
