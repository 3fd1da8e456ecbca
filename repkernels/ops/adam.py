"""Steps of Adam and AdamW on lists of tensors (SPEC.md, "Adam"), in place."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.flat import in_memory_order, write_back
from repkernels.subnormals import subnormals_kept


def adam_steps(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    largest: Sequence[Tensor],
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    maximize: bool,
    decoupled: bool,
) -> None:
    """Step number `step`, from 1, of parameters p with gradients g, any strides, of one dtype and device.

    m, v: the averages of g and of g * g, fp32, or fp64 for fp64; largest: v's maximum for amsgrad, or nothing.
    Each a single rounded operation in binary32 (fp64: binary64), scalars computed in binary64 and rounded once:
    g = -g if maximize; with weight decay p = p * (1 - lr * wd) if decoupled, else g = g + RN(wd * p);
    m = m + RN(RN(g - m) * (1 - b1)); v = RN(v * b2) + RN((1 - b2) * RN(g * g)); largest = MAX(largest, v), which
    then stands for v; p = p - RN((lr / (1 - b1^t)) * (m / RN(RN(sqrt(v) / sqrt(1 - b2^t)) + eps))).
    """
    if not p or p[0].is_meta:
        return
    with subnormals_kept():
        b1, b2 = betas
        shrink = 1 - lr * weight_decay if decoupled else 1.0
        decay = 0.0 if decoupled else weight_decay
        root = math.sqrt(1 - power(b2, step))
        rate = lr / (1 - power(b1, step))
        scalars = (shrink, decay, 1 - b1, b2, 1 - b2, root, eps, rate)
    columns = (p, g, m, v, largest) if largest else (p, g, m, v)
    groups, copies = in_memory_order(list(zip(*columns, strict=True)))
    flat = [list(column) for column in zip(*groups, strict=True)]
    kernels = backend("adam", p[0].device.type)
    kernels.adam_steps(*flat[:4], flat[4] if largest else [], *scalars, maximize)
    changed = [*p, *m, *v, *largest]
    write_back(copies, changed)
    # Autograd and kept digits go by the version, and a kernel writes behind torch's back.
    torch.autograd.graph.increment_version(changed)


def power(base: float, exponent: int) -> float:
    """base^exponent in binary64 by repeated squaring, from the lowest bit, since libm differs by machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
