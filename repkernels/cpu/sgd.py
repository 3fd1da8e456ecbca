"""A step of SGD on the CPU (SPEC.md, "SGD"): elementwise, in place, over a list of tensors."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, float64

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread
from repkernels.subnormals import subnormals_kept


def sgd_steps(
    p: Sequence[Tensor], g: Sequence[Tensor], v: Sequence[Tensor], lr: float, momentum: float, dampening: float,
    weight_decay: float, nesterov: bool, first: bool, maximize: bool,
) -> None:  # fmt: skip
    """Updates p and, if momentum is not 0, its velocity v. Scalars: computed in binary64, rounded once to v's format.

    p, g: contiguous tensors of one dtype. v: fp32, or fp64 for fp64; not read where `first`; empty without momentum.
    """
    wide = np.float64 if p[0].dtype == float64 else np.float32
    with subnormals_kept():
        # In memory, since Numba rounds an fp32 argument once more, on the calling thread.
        scalars = np.array([lr, momentum, 1 - dampening, weight_decay], wide)
    flags = (momentum != 0, weight_decay != 0, nesterov, first, maximize)
    for i in range(len(p)):
        velocity = numbers(v[i]).reshape(-1) if momentum != 0 else np.empty(0, wide)
        arrays = (numbers(p[i]).reshape(-1), numbers(g[i]).reshape(-1), velocity)
        spread(_step, p[i].numel(), 3 * p[i].numel(), *arrays, scalars, *flags)


@kernel
def _step(start, stop, p, g, v, scalars, moving, decaying, nesterov, first, maximize):
    """`share` of the gradient is added to the velocity."""
    state = keep_subnormals()
    lr, momentum, share, decay = scalars[0], scalars[1], scalars[2], scalars[3]
    for i in range(start, stop):
        w, d = widened(p[i]), widened(g[i])
        if maximize:
            d = -d
        if decaying:
            d = d + decay * w
        if moving:
            b = d if first else momentum * v[i] + share * d
            v[i] = b
            d = d + momentum * b if nesterov else b
        put(p, i, w - lr * d)
    restore(state)
