"""A step of Adam or AdamW on the CPU (SPEC.md, "Adam"): elementwise, in place, over a list of tensors."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, float64

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread
from repkernels.subnormals import subnormals_kept


def adam_steps(
    p: Sequence[Tensor], g: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor], largest: Sequence[Tensor],
    shrink: float, decay: float, first: float, keep: float, second: float, root: float, eps: float, rate: float,
    maximize: bool,
) -> None:  # fmt: skip
    """Updates p, m, v and, unless it is empty, largest: contiguous tensors; p and g of one dtype, the others fp32, or
    fp64 for fp64.

    shrink: what p is multiplied by, unless 1. decay: the share of p in the gradient, unless 0. first, second: the
    shares of g in m and of g * g in v; keep: that of v in v. root: what sqrt(v) is divided by. rate: the step's size.
    """
    with subnormals_kept():
        # In memory, since Numba rounds an fp32 argument once more, on the calling thread.
        wide = np.float64 if p[0].dtype == float64 else np.float32
        scalars = np.array([shrink, decay, first, keep, second, root, eps, rate], wide)
    flags = (shrink != 1, decay != 0, bool(largest), maximize)
    for i in range(len(p)):
        tensors = (p[i], g[i], m[i], v[i], largest[i] if largest else v[i])
        arrays = (numbers(x).reshape(-1) for x in tensors)
        spread(_step, p[i].numel(), 4 * p[i].numel(), *arrays, scalars, *flags)


@kernel
def _step(start, stop, p, g, m, v, largest, scalars, shrinking, decaying, amsgrad, maximize):
    state = keep_subnormals()
    shrink, decay, first, keep = scalars[0], scalars[1], scalars[2], scalars[3]
    second, root, eps, rate = scalars[4], scalars[5], scalars[6], scalars[7]
    for i in range(start, stop):
        w, d = widened(p[i]), widened(g[i])
        if maximize:
            d = -d
        if decaying:
            d = d + decay * w
        if shrinking:
            w = w * shrink
        b = m[i] + (d - m[i]) * first
        c = v[i] * keep + second * (d * d)
        m[i], v[i] = b, c
        if amsgrad:
            before = largest[i]
            c = c if (c > before) | (c != c) else before
            largest[i] = c
        put(p, i, w - rate * (b / (np.sqrt(c) / root + eps)))
    restore(state)
