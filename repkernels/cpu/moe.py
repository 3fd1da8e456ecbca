"""Mixtures of experts on the CPU (SPEC.md, "Mixtures of experts"): rows to experts, and their sum by token."""

import numpy as np
from torch import Tensor, index_select

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import widen


def groups(index: Tensor, experts: int, order: Tensor, inverse: Tensor, offs: Tensor) -> bool:
    """Nothing: a stable sort of integers does it."""
    return False


def router(logits: Tensor, norm: bool, weights: Tensor, index: Tensor) -> bool:
    """Nothing: softmax, topk, sum and div do it."""
    return False


def rows(x: Tensor, order: Tensor, k: int, out: Tensor) -> None:
    """out[r] = x[order[r] // k], rows of x (T, C)."""
    index_select(x, 0, order // k, out=out)


def combine(x: Tensor, weights: Tensor | None, inverse: Tensor, k: int, out: Tensor) -> None:
    """out (T, C): for each token the sum of its k rows of x (T * k, C), times its weights (T, k), contiguous."""
    scale = np.empty(0, np.float32) if weights is None else widen(weights).reshape(-1)
    spread(_combine, len(out), x.numel(), numbers(x.contiguous()), scale, inverse.numpy(), k, numbers(out))


@kernel
def _combine(start, stop, x, scale, inverse, k, out):
    state = keep_subnormals()
    total = np.empty(x.shape[1], np.float32)
    for token in range(start, stop):
        for slot in range(k):
            row = x[inverse[token * k + slot]]
            if scale.size > 0:
                w = scale[token * k + slot]
                for j in range(total.size):
                    v = widened(row[j]) * w
                    total[j] = v if slot == 0 else total[j] + v
            else:
                for j in range(total.size):
                    v = widened(row[j])
                    total[j] = v if slot == 0 else total[j] + v
        line = out[token]
        for j in range(total.size):
            put(line, j, total[j])
    restore(state)
