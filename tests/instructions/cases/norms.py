"""Norms: rows in registers and longer ones, channels in both memory layouts."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import batch_norm, group_norm, layer_norm, rms_norm
from tests.instructions.case import Case, everything, tensor

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64


def _rows(module: object, rows: int, columns: int, dtype: torch.dtype, odd: bool, full: bool) -> None:
    """Forward and backward; full: with a residual, its gradient, weight and (layer_norm) bias."""
    x, g, z, e = (tensor(rows, columns, dtype=dtype, odd=odd) for _ in range(4))
    w, b = (tensor(columns, dtype=dtype, odd=odd) if full else None for _ in range(2))
    b = None if module is rms_norm else b
    _, total, mean, inverse = module.forward(x, z if full else None, w, b, 1e-5, dtype)
    module.backward(g, x, mean, inverse, w, e if full else None, full)


def _channels(shape: tuple[int, ...], dtype: torch.dtype, odd: bool) -> None:
    x, g = tensor(*shape, dtype=dtype, odd=odd), tensor(*shape, dtype=dtype, odd=odd)
    w, b, m, v = (tensor(shape[1], dtype=dtype, odd=odd) for _ in range(4))
    _, mean, inverse, *_ = batch_norm.training(x, w, b, m, v, 0.1, 1e-5)
    batch_norm.backward(g, x, mean, inverse, w, True)
    batch_norm.evaluation(x, w, b, m, v, 1e-5)
    batch_norm.backward(g, x, mean, inverse, w, False)
    if len(shape) == 3:
        _, mean, inverse = group_norm.forward(x, 2, w, b, 1e-5, dtype)
        group_norm.backward(g, x, mean, inverse, 2, w)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    full = everything(target)
    yield Case("layer_norm bf16", partial(_rows, layer_norm, 8192, 4096, BF16, False, True))
    # Not 33 to 512 columns: for AMD, Triton 3.6 takes a minute over a backward program of several such rows.
    yield Case("layer_norm fp32 odd", partial(_rows, layer_norm, 77, 777, FP32, True, True))
    yield Case("layer_norm fp32 short, odd", partial(_rows, layer_norm, 77, 5, FP32, True, True))
    yield Case("rms_norm bf16", partial(_rows, rms_norm, 8192, 1024, BF16, False, False))
    yield Case("layer_norm bf16 long", partial(_rows, layer_norm, 100, 65536, BF16, False, True))
    yield Case("batch_norm bf16 odd", partial(_channels, (3, 6, 121), BF16, True))
    yield Case("batch_norm fp32 columns", partial(_channels, (5000, 64), FP32, False))
    if full:
        yield Case("rms_norm bf16 full", partial(_rows, rms_norm, 8192, 4096, BF16, False, True))
        yield Case("layer_norm fp64", partial(_rows, layer_norm, 77, 333, FP64, False, True))
        yield Case("batch_norm fp64", partial(_channels, (3, 6, 121), FP64, False))
