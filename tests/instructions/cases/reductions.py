"""Reductions over any axes, their gradients, extrema and cumulative sums."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from repkernels.kernels import cumsum, extrema, reduction_gradient
from repkernels.kernels import sum as sums
from tests.instructions.case import Case, everything, tensor

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64


def _view(dtype: torch.dtype, shape: tuple[int, int, int, int], along: bool, odd: bool = False) -> Tensor:
    """(R1, R2, N1, N2) with R1 outermost and R2 (along) or N2 innermost in memory."""
    r1, r2, n1, n2 = shape
    if along:
        return tensor(r1, n1, n2, r2, dtype=dtype, odd=odd).permute(0, 3, 1, 2)
    return tensor(r1, r2, n1, n2, dtype=dtype, odd=odd)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return FP64 if dtype == FP64 else FP32


def _reduce(x: Tensor, term: str, finish: str) -> None:
    center = tensor(x.shape[2] * x.shape[3], dtype=_wide(x.dtype)) if term not in ("value", "square") else None
    sums.reduce(x, term, center, finish, 3.5, x.dtype)


def _extreme(x: Tensor, largest: bool, magnitude: bool) -> None:
    extrema.extreme(x, largest, magnitude)
    if not magnitude:
        extrema.position(x, largest)


def _pair(dtype: torch.dtype, largest: bool) -> None:
    x = tensor(4097, dtype=dtype)
    extrema.maximum(x, x, largest)
    extrema.maximum_gradient(x, x, x, largest)


def _gradient(x: Tensor, formula: str) -> None:
    column = tensor(x.shape[2] * x.shape[3], dtype=_wide(x.dtype))
    reduction_gradient.gradient(x, x, column, column, column, formula, 3.5)


def _cumsum(x: Tensor, reverse: bool) -> None:
    cumsum.cumsum(x, torch.empty_like(x), reverse)


def cases(target: str) -> Iterator[Case]:
    """Each term, finish and formula in one format, along memory or across, with one level of rows or two; on sm_90."""
    full = everything(target)
    rows, columns = (1, 1024, 1, 4096), (1, 4096, 1, 1024)
    yield Case("reduce float32 along", partial(_reduce, _view(FP32, rows, True), "deviation", "mean root"))
    yield Case("reduce bfloat16 along", partial(_reduce, _view(BF16, rows, True), "exponential", "logarithm"))
    two = _view(BF16, (7, 333, 3, 5), False, odd=True)
    yield Case("reduce two levels, odd", partial(_reduce, two, "tie", "sum"))
    yield Case("reduce float32 across", partial(_reduce, _view(FP32, columns, False), "magnitude tie", "sum"))
    yield Case("extreme float32", partial(_extreme, _view(FP32, rows, True), True, False))
    yield Case("extreme float64", partial(_extreme, _view(FP64, columns, False), False, True))
    yield Case("maximum", partial(_pair, BF16, True))
    formulas = ("variance", "exponential", "tie", "magnitude tie", "deviation", "root", "sign", "quotient")
    for i, formula in enumerate(formulas if full else formulas[:3]):
        dtype = (FP32, BF16, FP32, FP64)[i % 4]
        x = _view(dtype, rows if i % 2 else (7, 333, 3, 5), i % 2 == 1, odd=i % 2 == 0)
        yield Case(f"gradient {formula}", partial(_gradient, x, formula))
    yield Case("cumsum of blocks", partial(_cumsum, _view(BF16, (1, 5000, 1, 3), True, odd=True), True))
    if full:
        yield Case("reduce float64 along", partial(_reduce, _view(FP64, rows, True), "square", "root"))
        yield Case("reduce short", partial(_reduce, _view(FP32, (1, 16, 1, 4096), True), "nonzero", "sum"))
        yield Case("reduce long", partial(_reduce, _view(FP32, (1, 70001, 1, 3), True), "magnitude", "mean"))
        yield Case("extreme bfloat16", partial(_extreme, _view(BF16, (7, 3333, 1, 64), False), False, False))
        yield Case("minimum", partial(_pair, FP64, False))
        yield Case("cumsum float32", partial(_cumsum, _view(FP32, rows, True), False))
        yield Case("cumsum across", partial(_cumsum, _view(FP64, (1, 5000, 300, 64), False), True))
