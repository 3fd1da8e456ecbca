"""Softmax and its logarithm on the CPU (SPEC.md, "softmax"): one row at a time."""

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import exp_f32, ln_f32, numbers, put, widened
from repkernels.cpu.rows import exponentials, row_maximum, row_sum, scratch, shift
from repkernels.cpu.spread import spread


def softmax(x: Tensor, log: bool) -> Tensor:
    """The softmax of each row of x (N, C), fp32, bf16 or fp16, any strides, or its logarithm; contiguous, x's dtype."""
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    spread(_softmax, len(x), x.numel(), numbers(x), log, numbers(y))
    return y


def softmax_backward(g: Tensor, y: Tensor, log: bool) -> Tensor:
    """The gradient of x from that of the result y, both (N, C), any strides; contiguous, y's dtype."""
    g, y, grad = g.contiguous(), y.contiguous(), torch.empty(y.shape, dtype=y.dtype)
    spread(_softmax_backward, len(y), y.numel(), numbers(g), numbers(y), log, numbers(grad))
    return grad


@kernel
def _softmax(start, stop, x, log, y):
    state = keep_subnormals()
    line, lanes, sums = scratch(x.shape[1])
    for i in range(start, stop):
        row, out = x[i], y[i]
        m = row_maximum(row)
        shift(row, m, line)
        exponentials(line, line)
        total = row_sum(line, lanes, sums)
        if log:
            logarithm = ln_f32(total)
            for j in range(line.size):
                put(out, j, (widened(row[j]) - m) - logarithm)
        else:
            r = np.float32(1) / total
            for j in range(line.size):
                put(out, j, line[j] * r)
    restore(state)


@kernel
def _softmax_backward(start, stop, g, y, log, grad):
    state = keep_subnormals()
    line, lanes, sums = scratch(y.shape[1])
    zero = np.float32(0)
    for i in range(start, stop):
        upstream, row, out = g[i], y[i], grad[i]
        for j in range(line.size):
            line[j] = widened(upstream[j]) if log else widened(upstream[j]) * widened(row[j])
        total = row_sum(line, lanes, sums)
        if log:
            for j in range(line.size):
                v = widened(row[j])
                put(out, j, widened(upstream[j]) - exp_f32(zero if v > zero else v) * total)
        else:
            for j in range(line.size):
                put(out, j, widened(row[j]) * (widened(upstream[j]) - total))
    restore(state)
