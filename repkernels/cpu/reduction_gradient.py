"""The gradients of reductions on the CPU (SPEC.md, "Reductions"): each element from its column's few numbers."""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.divide import divide
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers
from repkernels.cpu.memory import like, load, memory, narrow_to, store, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.terms import exponential, tie

CHUNK = 1024
FORMULAS = {
    name: number
    for number, name in enumerate(
        ("quotient", "variance", "deviation", "root", "sign", "tie", "magnitude tie", "exponential")
    )
}
QUOTIENT, VARIANCE, DEVIATION, ROOT, SIGN, TIE, MAGNITUDE_TIE, EXPONENTIAL = range(len(FORMULAS))


def gradient(
    x: Tensor, out: Tensor, g: Tensor, a: Tensor | None, b: Tensor | None, formula: str, divisor: float
) -> None:
    """Writes `out` from x, both (R1, R2, N1, N2), any strides; g, a, b: (N1 * N2,) contiguous, of the wide format."""
    columns = x.shape[2] * x.shape[3]
    centers, factors = np.zeros(columns, numbers(g).dtype), np.empty(columns, numbers(g).dtype)
    if a is not None:
        centers[:] = numbers(a)
    kind = FORMULAS[formula]
    spread(
        _factors, columns, columns, numbers(g), numbers(g if b is None else b), kind, factors.dtype.type(divisor),
        factors,
    )  # fmt: skip
    wide, x = like(out), widened(x)
    # Axes as (outer, middle, inner, innermost), and the step to the next column on each; the innermost lies nearest.
    R1, R2, N1, N2 = 0, 1, 2, 3
    across = x.shape[3] > 1 and x.stride(3) < x.stride(1)
    order = (R1, R2, N1, N2) if across else (N1, N2, R1, R2)
    steps = (0, 0, x.shape[3], 1)
    sizes, strides, to, step = (tuple(v[i] for i in order) for v in (x.shape, x.stride(), wide.stride(), steps))
    units = sizes[0] * sizes[1] * sizes[2]
    spread(_gradient, units, x.numel(), memory(x), memory(wide), sizes, strides, to, step, centers, factors, kind)
    narrow_to(out, wide)


@kernel
def _factors(start, stop, g, b, kind, divisor, factors):
    """What each element of a column is multiplied by (QUOTIENT: divided by)."""
    state = keep_subnormals()
    zero = g.dtype.type(0)
    for i in range(start, stop):
        if kind == QUOTIENT:
            factors[i] = divisor
        elif kind == VARIANCE:
            factors[i] = divide(g[i] + g[i], divisor)
        elif kind == DEVIATION:
            factors[i] = zero if b[i] == zero else divide(divide(g[i], b[i]), divisor)
        elif kind == ROOT:
            factors[i] = zero if b[i] == zero else divide(g[i], b[i])
        elif kind == TIE or kind == MAGNITUDE_TIE:
            factors[i] = divide(g[i], b[i])
        else:
            factors[i] = g[i]
    restore(state)


@kernel
def _gradient(start, stop, x, out, sizes, strides, to, step, centers, factors, kind):
    """One unit is a run of the innermost axis."""
    state = keep_subnormals()
    v, center, factor = np.empty(CHUNK, x.dtype), np.empty(CHUNK, x.dtype), np.empty(CHUNK, x.dtype)
    for unit in range(start, stop):
        i, j, k = unit // (sizes[1] * sizes[2]), unit // sizes[2] % sizes[1], unit % sizes[2]
        from_at = i * strides[0] + j * strides[1] + k * strides[2]
        to_at = i * to[0] + j * to[1] + k * to[2]
        column = i * step[0] + j * step[1] + k * step[2]
        for first in range(0, sizes[3], CHUNK):
            n = min(sizes[3] - first, CHUNK)
            load(v[:n], x, from_at + first * strides[3], strides[3])
            load(center[:n], centers, column + first * step[3], step[3])
            load(factor[:n], factors, column + first * step[3], step[3])
            _apply(v[:n], center[:n], factor[:n], kind)
            store(out, to_at + first * to[3], to[3], v[:n])
    restore(state)


@njit
def _apply(v, c, s, kind):
    """v[j] becomes the gradient of v[j]."""
    zero = v.dtype.type(0)
    if kind == QUOTIENT:
        for j in range(v.size):
            v[j] = divide(v[j], s[j])
    elif kind == VARIANCE or kind == DEVIATION:
        for j in range(v.size):
            v[j] = (v[j] - c[j]) * s[j]
    elif kind == ROOT:
        for j in range(v.size):
            v[j] = v[j] * s[j]
    elif kind == SIGN:
        for j in range(v.size):
            v[j] = _sign(v[j]) * s[j]
    elif kind == TIE:
        for j in range(v.size):
            v[j] = s[j] if tie(v[j], c[j]) else zero
    elif kind == MAGNITUDE_TIE:
        for j in range(v.size):
            v[j] = _sign(v[j]) * s[j] if tie(abs(v[j]), c[j]) else zero
    elif kind == EXPONENTIAL:
        for j in range(v.size):
            d = v[j] - c[j]
            v[j] = exponential(zero if d > zero else d) * s[j]


@njit
def _sign(v):
    """1 or -1; zeros and NaN stay."""
    one = type(v)(1)
    return one if v > 0 else -one if v < 0 else v
