"""max_pool on the CPU (SPEC.md, "Pooling"): window by window, and gradients handed out in the order of the results."""

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.memory import like, memory, narrow_to, widened
from repkernels.cpu.windows import planes_of, walk
from repkernels.windows import Windows


def forward(x: Tensor, starts: Tensor | None, values: Tensor, taps: Tensor, w: Windows) -> None:
    """x (N, C, D, H, W), any strides -> values, taps (N, C, *output), of one set of strides, without gaps.

    taps: the number of the tap that was taken, row-major within the kernel; uint8 or int32, -1 where there is none.
    starts: int64 (N * C, sum of output), the first positions of the windows of each plane along its three axes, instead
    of those of `w`.
    """
    wide, number = like(values), torch.empty_like(taps, dtype=torch.int32)
    first = None if starts is None else starts.numpy()
    walk(_forward, w, first, wide, widened(x), values.numel() * w.taps, memory(number))
    narrow_to(values, wide)
    taps.copy_(number.bitwise_and_(255) if taps.dtype == torch.uint8 else number)


def backward(grad: Tensor, taps: Tensor, out: Tensor, w: Windows) -> None:
    """grad, taps (N, C, *output), of one set of strides -> out (N, C, D, H, W), without gaps, the input's gradient."""
    wide, number = like(out).zero_(), taps.int()
    if taps.dtype == torch.uint8:
        number.masked_fill_(taps == 255, -1)
    walk(_backward, w, None, wide, widened(grad), out.numel() + grad.numel(), memory(number))
    narrow_to(out, wide)


@kernel
def _forward(start, stop, table, sizes, values, value_strides, x, strides, taps):
    state = keep_subnormals()
    output, extent, dilation = sizes[3:6], sizes[6:9], sizes[9:12]
    for block in range(start, stop):
        n, low, high = planes_of(block, sizes)
        windows = table[n * sizes[1] + low if len(table) > 1 else 0]
        for d in range(output[0]):
            along_d = windows[d]
            for h in range(output[1]):
                along_h = windows[output[0] + h]
                for w in range(output[2]):
                    along_w = windows[output[0] + output[1] + w]
                    here = n * value_strides[0] + d * value_strides[2] + h * value_strides[3] + w * value_strides[4]
                    for c in range(low, high):
                        best, tap = values.dtype.type(-np.inf), -1
                        for a in range(along_d[1], along_d[2]):
                            at_d = n * strides[0] + c * strides[1] + (along_d[0] + a * dilation[0]) * strides[2]
                            for b in range(along_h[1], along_h[2]):
                                at_h = at_d + (along_h[0] + b * dilation[1]) * strides[3]
                                for e in range(along_w[1], along_w[2]):
                                    v = x[at_h + (along_w[0] + e * dilation[2]) * strides[4]]
                                    if v > best or v != v or tap < 0:
                                        best, tap = v, (a * extent[1] + b) * extent[2] + e
                        values[here + c * value_strides[1]] = best
                        taps[here + c * value_strides[1]] = tap
    restore(state)


@kernel
def _backward(start, stop, table, sizes, out, strides, grad, grad_strides, taps):
    state = keep_subnormals()
    output, extent, dilation, windows = sizes[3:6], sizes[6:9], sizes[9:12], table[0]
    for block in range(start, stop):
        n, low, high = planes_of(block, sizes)
        for d in range(output[0]):
            for h in range(output[1]):
                for w in range(output[2]):
                    here = n * grad_strides[0] + d * grad_strides[2] + h * grad_strides[3] + w * grad_strides[4]
                    for c in range(low, high):
                        of = here + c * grad_strides[1]
                        tap = taps[of]
                        if tap >= 0:
                            at_d = windows[d, 0] + tap // (extent[1] * extent[2]) * dilation[0]
                            at_h = windows[output[0] + h, 0] + tap // extent[2] % extent[1] * dilation[1]
                            at_w = windows[output[0] + output[1] + w, 0] + tap % extent[2] * dilation[2]
                            to = n * strides[0] + c * strides[1] + at_d * strides[2] + at_h * strides[3]
                            out[to + at_w * strides[4]] += grad[of]
    restore(state)
