"""The elementwise last steps of norms, for rows that do not stay in registers: a program takes a tile of a matrix.

Statistics belong to a row or to a column of the matrix (M, K), and so do weight and bias (`Axes`).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


class Axes(NamedTuple):
    """Where the numbers of a matrix element (m, k) are: statistic (m // div) % mod or k, weight m % weights or k."""

    statistic_by_row: bool
    weight_by_row: bool
    div: int = 1
    mod: int = 0
    weights: int = 0


ROW = Axes(True, False)
COLUMN = Axes(False, False)


@triton.jit
def apply_kernel(
    x, mean, inverse, weight, bias, y, M, K, stride_m, stride_k, DIV, MOD, WEIGHTS, ROWS: tl.constexpr,
    COLS: tl.constexpr, S_ROW: tl.constexpr, W_ROW: tl.constexpr, FAR: tl.constexpr, CENTRED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = ((x - mean) * inverse) * weight + bias on a tile; y contiguous."""
    row, col, mask, at = tile(M, K, ROWS, COLS)
    s = place(row, col, DIV, MOD, S_ROW, FAR)
    result = tl.load(x + row * stride_m + col * stride_k, mask=mask, other=0.0).to(WIDE)
    if CENTRED:
        result = result - numbers(mean, s, row, col, M, K, S_ROW, WIDE)
    result = result * numbers(inverse, s, row, col, M, K, S_ROW, WIDE)
    w = place(row, col, 1, WEIGHTS, W_ROW, FAR)
    if WEIGHT:
        result = result * numbers(weight, w, row, col, M, K, W_ROW, WIDE)
    if BIAS:
        result = result + numbers(bias, w, row, col, M, K, W_ROW, WIDE)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=mask)


@triton.jit
def gradient_kernel(
    g, x, mean, inverse, weight, a, b, scale, dx, M, K, stride_gm, stride_gk, stride_xm, stride_xk, DIV, MOD,
    WEIGHTS, ROWS: tl.constexpr, COLS: tl.constexpr, S_ROW: tl.constexpr, W_ROW: tl.constexpr, FAR: tl.constexpr,
    CENTRED: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = scale * ((g * weight - b) - xhat * a) on a tile; dx contiguous."""
    row, col, mask, at = tile(M, K, ROWS, COLS)
    s = place(row, col, DIV, MOD, S_ROW, FAR)
    u = tl.load(g + row * stride_gm + col * stride_gk, mask=mask, other=0.0).to(WIDE)
    xhat = tl.load(x + row * stride_xm + col * stride_xk, mask=mask, other=0.0).to(WIDE)
    if WEIGHT:
        u = u * numbers(weight, place(row, col, 1, WEIGHTS, W_ROW, FAR), row, col, M, K, W_ROW, WIDE)
    if CENTRED:
        xhat = xhat - numbers(mean, s, row, col, M, K, S_ROW, WIDE)
        u = u - numbers(b, s, row, col, M, K, S_ROW, WIDE)
    xhat = xhat * numbers(inverse, s, row, col, M, K, S_ROW, WIDE)
    u = u - xhat * numbers(a, s, row, col, M, K, S_ROW, WIDE)
    result = numbers(scale, s, row, col, M, K, S_ROW, WIDE) * u
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def scale_kernel(
    g, scale, dx, M, K, stride_m, stride_k, DIV, MOD, WEIGHTS, ROWS: tl.constexpr, COLS: tl.constexpr,
    S_ROW: tl.constexpr, W_ROW: tl.constexpr, FAR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = scale * g on a tile; dx contiguous."""
    row, col, mask, at = tile(M, K, ROWS, COLS)
    u = tl.load(g + row * stride_m + col * stride_k, mask=mask, other=0.0).to(WIDE)
    factor = numbers(scale, place(row, col, DIV, MOD, S_ROW, FAR), row, col, M, K, S_ROW, WIDE)
    tl.store(dx + at, (factor * u).to(dx.dtype.element_ty), mask=mask)


@triton.jit
def add_kernel(
    x, z, out, M, K, stride_xm, stride_xk, stride_zm, stride_zk, ROWS: tl.constexpr, COLS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """out = x + z on a tile; out contiguous."""
    row, col, mask, at = tile(M, K, ROWS, COLS)
    v = tl.load(x + row * stride_xm + col * stride_xk, mask=mask, other=0.0).to(WIDE)
    total = v + tl.load(z + row * stride_zm + col * stride_zk, mask=mask, other=0.0).to(WIDE)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def tile(M, K, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Rows (ROWS, 1) and columns (1, COLS) of the program's tile as int64, where they exist, and their places."""
    tiles = tl.cdiv(K, COLS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % tiles).to(tl.int64) * COLS + tl.arange(0, COLS)[None, :]
    return row, col, (row < M) & (col < K), row * K + col


@triton.jit
def place(row, col, DIV, MOD, BY_ROW: tl.constexpr, FAR: tl.constexpr):
    """Which number belongs to an element. FAR: rows are counted in 64 bits, in which a division is slow."""
    return (row if FAR else row.to(tl.int32)) // DIV % MOD if BY_ROW else col


@triton.jit
def numbers(v, at, row, col, M, K, BY_ROW: tl.constexpr, WIDE: tl.constexpr):
    """v at places that rows or columns have."""
    inside = row < M if BY_ROW else col < K
    return tl.load(v + at, mask=inside, other=0.0).to(WIDE)


def apply(
    x: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    axes: Axes,
) -> None:
    """y = ((x - mean) * inverse) * weight + bias of x (M, K), any strides, y contiguous; what is None is left out."""
    _launch(
        apply_kernel, x, mean, inverse, weight, bias, y, strided=(x,), axes=axes, wide=inverse.dtype,
        CENTRED=mean is not None, WEIGHT=weight is not None, BIAS=bias is not None,
    )  # fmt: skip


def gradient(
    g: Tensor,
    x: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    weight: Tensor | None,
    a: Tensor,
    b: Tensor,
    scale: Tensor,
    dx: Tensor,
    axes: Axes,
) -> None:
    """dx = scale * ((g * weight - b) - xhat * a) of g and x (M, K); without a mean, b is left out."""
    _launch(
        gradient_kernel, g, x, mean, inverse, weight, a, b, scale, dx, strided=(g, x), axes=axes, wide=inverse.dtype,
        CENTRED=mean is not None, WEIGHT=weight is not None,
    )  # fmt: skip


def scaled(g: Tensor, scale: Tensor, dx: Tensor, axes: Axes) -> None:
    """dx = scale * g of g (M, K)."""
    _launch(scale_kernel, g, scale, dx, strided=(g,), axes=axes, wide=scale.dtype)


def add_rows(x: Tensor, z: Tensor, out: Tensor) -> Tensor:
    """out = x + z of matrices, rounded to out's dtype."""
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    _launch(add_kernel, x, z, out, strided=(x, z), axes=None, wide=wide)
    return out


def _launch(
    kernel: triton.JITFunction,
    *tensors: Tensor | None,
    strided: tuple[Tensor, ...],
    axes: Axes | None,
    wide: torch.dtype,
    **constants: bool,
) -> None:
    rows, columns = strided[0].shape
    cols = min(1024, next_power_of_2(max(1, columns)))
    many = max(1, min(1024 // cols, next_power_of_2(max(1, rows))))
    numbers = [stride for x in strided for stride in x.stride()]
    if axes is not None:
        numbers += [axes.div, axes.mod or rows, axes.weights or rows]
        constants |= {"FAR": rows >= 2**31, "S_ROW": axes.statistic_by_row, "W_ROW": axes.weight_by_row}
    given = [strided[0] if x is None else x for x in tensors]
    launch(
        kernel, (cdiv(rows, many) * cdiv(columns, cols),), *given, rows, columns, *numbers,
        ROWS=many, COLS=cols, WIDE=TYPES[wide], **constants,
    )  # fmt: skip
