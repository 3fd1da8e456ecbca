"""Softmax cross-entropy on the CPU (SPEC.md, "Cross-entropy"): one row at a time, 1024 lanes of exponentials."""

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import exp_f32, larger, ln_f32, numbers, put, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.sum import BLOCK, LANES, halve, sum_in_place


def forward(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (N, C) of fp32, bf16 or fp16, any strides; target (N,) int64 -> loss, max, log_sum, inv_sum, each (N,) fp32.

    The loss of a row whose target is not in [0, C) is NaN.
    """
    results = [torch.empty(len(x), dtype=torch.float32, device=x.device) for _ in range(4)]
    spread(_forward, len(x), x.numel(), numbers(x), target.numpy(), *(r.numpy() for r in results))
    loss, largest, log_sum, inv_sum = results
    return loss, largest, log_sum, inv_sum


def backward(x: Tensor, target: Tensor, largest: Tensor, inv_sum: Tensor, scale: Tensor) -> Tensor:
    """The gradient of x (N, C), in x's dtype; largest and inv_sum come from `forward`, scale is (N,) fp32."""
    grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = (target.numpy(), numbers(largest), numbers(inv_sum), numbers(scale))
    spread(_backward, len(x), x.numel(), numbers(x), *rows, numbers(grad))
    return grad


@kernel
def _forward(start, stop, x, target, loss, largest, log_sum, inv_sum):
    state = keep_subnormals()
    columns = x.shape[1]
    lanes = np.empty(LANES, np.float32)
    sums = np.empty(-(-columns // BLOCK), np.float32)
    for i in range(start, stop):
        row = x[i]
        m = np.float32(-np.inf)
        for j in range(columns):
            m = larger(m, widened(row[j]))
        for block in range(sums.size):
            left, right = block * BLOCK, min((block + 1) * BLOCK, columns)
            n = min(right - left, LANES)
            terms = row[left : left + n]
            for j in range(n):
                lanes[j] = exp_f32(widened(terms[j]) - m)
            for first in range(left + LANES, right, LANES):
                terms = row[first : min(first + LANES, right)]
                for j in range(terms.size):
                    lanes[j] += exp_f32(widened(terms[j]) - m)
            sums[block] = halve(lanes, n)
        total = sum_in_place(sums, lanes)
        largest[i] = m
        log_sum[i] = ln_f32(total)
        inv_sum[i] = np.float32(1) / total
        y = target[i]
        loss[i] = log_sum[i] - (widened(row[y]) - m) if 0 <= y < columns else np.float32(np.nan)
    restore(state)


@kernel
def _backward(start, stop, x, target, largest, inv_sum, scale, grad):
    state = keep_subnormals()
    for i in range(start, stop):
        row, out, y = x[i], grad[i], target[i]
        m, r, factor = largest[i], inv_sum[i], scale[i]
        for j in range(row.size):
            p = exp_f32(widened(row[j]) - m) * r
            put(out, j, (p - np.float32(j == y)) * factor)
    restore(state)
