"""Pooling: both layouts, windows in registers and in loops, rows of an image one by one and several together."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import avg_pool, max_pool
from repkernels.windows import Windows, adaptive
from tests.instructions.case import Case, everything, tensor

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64
_ONES = (1, 1, 1)


def _plane(size: int, kernel: int, stride: int, padding: int) -> Windows:
    output = (size + 2 * padding - kernel) // stride + 1
    square = (1, size, size), (1, kernel, kernel), (1, stride, stride), (0, padding, padding)
    return Windows(*square, _ONES, (1, output, output), False)


def _pool(w: Windows, channels: int, dtype: torch.dtype, odd: bool, last: bool) -> None:
    """Both poolings and their gradients; last: channels are neighbours."""

    def of(size: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        if last:
            return tensor(2, *size, channels, dtype=kind, odd=odd).permute(0, 4, 1, 2, 3)
        return tensor(2, channels, *size, dtype=kind, odd=odd)

    x, y, taps = of(w.size, dtype), of(w.output, dtype), of(w.output, torch.uint8)
    max_pool.forward(x, None, y, taps, w)
    max_pool.backward(y, taps, x, w)
    avg_pool.forward(x, y, w, 0, 0)
    avg_pool.backward(y, x, w, 0, 0)


def _starts(w: Windows) -> None:
    x, y = tensor(2, 3, *w.size), tensor(2, 3, *w.output)
    starts = tensor(6, sum(w.output), dtype=torch.int64)
    max_pool.forward(x, starts, y, tensor(2, 3, *w.output, dtype=torch.uint8), w)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield Case("pooling fp32 odd", partial(_pool, _plane(13, 3, 2, 1), 5, FP32, True, False))
    yield Case("pooling bf16 channels_last", partial(_pool, _plane(16, 3, 2, 1), 64, BF16, False, True))
    yield Case("pooling fp32 long windows", partial(_pool, _plane(16, 7, 1, 3), 3, FP32, False, False))
    if everything(target):
        yield Case("pooling fp64 adaptive", partial(_pool, adaptive((1, 7, 5), (1, 3, 2)), 3, FP64, False, False))
        yield Case("pooling bf16 long windows", partial(_pool, _plane(16, 7, 1, 3), 64, BF16, False, True))
        yield Case("pooling fp32 starts", partial(_starts, _plane(9, 2, 2, 0)))
