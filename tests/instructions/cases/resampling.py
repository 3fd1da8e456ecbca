"""Resizing and padding, both layouts; taps of a grid and what they gather; the walks of ctc_loss."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import ctc_loss, grid_sample, resample
from repkernels.ops.taps import taps
from tests.instructions.case import Case, everything, tensor

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64


def _resample(dtype: torch.dtype, rule: str, n: int, m: int, transposed: bool, last: bool, odd: bool = False) -> None:
    wide = FP64 if dtype == FP64 else FP32
    table = taps(rule, n, m, (0.0,) * 4, transposed, wide, torch.device("cpu"))
    size, result = (m, n) if transposed else (n, m)
    x, out = (tensor(4, 8, 1, s, s, dtype=dtype, odd=odd) for s in (size, result))
    if last:
        x, out = (t.view(4, 1, *t.shape[3:], 8).permute(0, 4, 1, 2, 3) for t in (x, out))
    resample.resample(x, out, [None, table, table])


def _grid(dtype: torch.dtype, mode: int, padding: str, align: bool, axes: int = 2, odd: bool = False) -> None:
    wide = FP64 if dtype == FP64 else FP32
    x, g = (tensor(2, 16, 64, dtype=dtype, odd=odd) for _ in range(2))
    grid, count = tensor(128, axes, dtype=dtype, odd=odd), mode**axes
    index, weight = tensor(128, count, dtype=torch.int32), tensor(128, count, dtype=wide)
    slopes, factors = tensor(128, count, axes, dtype=wide), tensor(128, axes, dtype=wide)
    grid_sample.taps(grid, index, weight, slopes, factors, (4,) * axes, mode, padding, align)
    grid_sample.gather(x, index, weight, g)
    grid_sample.grid_gradient(g, x, index, slopes, factors, grid)


def _ctc(dtype: torch.dtype, steps: int, labels: int, odd: bool = False) -> None:
    x, out = (tensor(steps, 4, 32, dtype=dtype, odd=odd) for _ in range(2))
    y, lengths = tensor(4, labels, dtype=torch.int64), tensor(4, dtype=torch.int64)
    walks, loss, places = tensor(2, 4, steps, 2 * labels + 1), tensor(4), (4, 2 * labels + 1)
    ctc_loss.walk(x, y, lengths, lengths, 0, walks, loss)
    ctc_loss.occupancy(
        x, y, lengths, lengths, 0, walks, loss, tensor(*places, steps), tensor(*places, dtype=torch.int64)
    )
    ctc_loss.gradient(loss, x, tensor(128, steps), loss, lengths, False, out)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield Case("bilinear bf16", partial(_resample, BF16, "linear", 16, 32, False, True))
    yield Case("bilinear gradient fp32 odd", partial(_resample, FP32, "linear", 7, 13, True, False, odd=True))
    yield Case("grid_sample bf16 reflection", partial(_grid, BF16, 2, "reflection", False))
    yield Case("grid_sample fp32 bicubic odd", partial(_grid, FP32, 4, "border", True, odd=True))
    yield Case("ctc_loss fp32", partial(_ctc, FP32, 64, 20))
    if everything(target):
        yield Case("bicubic fp64, passes", partial(_resample, FP64, "cubic antialias", 32, 8, False, False))
        yield Case("grid_sample fp64, three axes", partial(_grid, FP64, 2, "border", True, 3))
        yield Case("grid_sample fp32 nearest", partial(_grid, FP32, 1, "zeros", False))
        yield Case("ctc_loss bf16 odd", partial(_ctc, BF16, 77, 700, odd=True))
