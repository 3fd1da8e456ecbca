"""Products with int8 weights on the CPU (SPEC.md, "int8 weights"): those of `fixed`, a weight being one digit."""

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers
from repkernels.cpu.matmul_fixed import product
from repkernels.cpu.matmul_ordered import ordered
from repkernels.cpu.quantize import quantize
from repkernels.cpu.spread import spread
from repkernels.cpu.store import put_result
from repkernels.cpu.wide import widen
from repkernels.digits import Digits, padded


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out: Tensor, S: int) -> None:
    """out (M, N) = x (M, K) in S digits times weight (N, K) int8 and scale (N,) fp32, + bias (N,); nothing is empty."""
    (M, K), N = x.shape, len(weight)
    left = quantize(x[None], S)
    planes = weight.contiguous()
    if padded(K) != K:
        planes = torch.nn.functional.pad(planes, (0, padded(K) - K))
    right = Digits(planes.view(1, 1, N, -1), torch.zeros(1, N, dtype=torch.int32))
    r = torch.empty(1, M, N)
    product(left, right, K, None, r, 0)
    touched = left.scale.numpy() & 1
    if touched.any():
        ordered(x[None].float(), weight.T[None].float(), None, r, (touched, np.zeros((1, N), np.int32)))
    offset = np.empty(0, np.float32) if bias is None else widen(bias)
    spread(_finish, M, M * N, numbers(r[0]), numbers(scale.contiguous()), offset, numbers(out))


@kernel
def _finish(start, stop, r, scale, bias, out):
    state = keep_subnormals()
    for i in range(start, stop):
        row, line = r[i], out[i]
        for j in range(scale.size):
            v = row[j] * scale[j]
            if bias.size > 0:
                v = v + bias[j]
            put_result(line, j, v)
    restore(state)
