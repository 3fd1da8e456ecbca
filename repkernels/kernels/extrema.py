"""Largest and smallest elements on a GPU (SPEC.md, "Extrema"), by integer keys in the order of the numbers.

A maximum of integers has no order, so rows are spread over lanes and programs as it suits the memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.kernels.terms import along, at_columns, at_rows

# As many programs as keep a large GPU busy, and the fewest rows for which another program is started.
BUSY = 512
LEAST_ROWS = 4096
SIZE = 1024


@triton.jit
def key_of(x, LARGEST: tl.constexpr, FIND: tl.constexpr, WIDE: tl.constexpr):
    """Integers of x's width, ordered as x is (the other way for the smallest), NaN highest; FIND: one zero only."""
    if FIND:
        x = x + 0.0  # -0 becomes +0
    if WIDE == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        key = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
        highest = tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)
    else:
        bits = x.to(tl.int32, bitcast=True)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        highest = tl.full([], 0x7FFFFFFF, tl.int32)
    if not LARGEST:
        key = key ^ -1
    return tl.where(x != x, highest, key)


@triton.jit
def number_of(key, LARGEST: tl.constexpr, WIDE: tl.constexpr):
    """The number that has this key."""
    if not LARGEST:
        key = key ^ -1
    if WIDE == tl.float64:
        x = (key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    else:
        x = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return x


@triton.jit
def extreme_kernel(
    x, out, rows_out, R, R2, N, N2, stride_r1, stride_r2, stride_n1, stride_n2, PART, LARGEST: tl.constexpr,
    MAGNITUDE: tl.constexpr, FIND: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    SPLIT: tl.constexpr, FAR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Part p of PART rows of COLS columns: out[p, n] is the best key (WHOLE: the number), rows_out[p, n] its row."""
    tiles = tl.cdiv(N, COLS)
    part = (tl.program_id(0) // tiles).to(tl.int64)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    top = part * PART
    count = tl.minimum(R - top, PART).to(tl.int32)
    lanes = tl.arange(0, ROWS)
    KEY: tl.constexpr = tl.int64 if WIDE == tl.float64 else tl.int32
    lowest = tl.full([], -0x8000000000000000 if WIDE == tl.float64 else -0x80000000, KEY)
    best = tl.broadcast_to(lowest, (ROWS, COLS))
    row = tl.zeros((ROWS, COLS), tl.int32)
    at = x + at_columns(cols, N2, stride_n1, stride_n2)[None, :]
    if not SPLIT:
        at += top * stride_r2
    for start in tl.range(0, count, ROWS):
        rows = start + lanes
        mask = (rows < count)[:, None] & (cols < N)[None, :]
        if SPLIT:
            r = (top if FAR else top.to(tl.int32)) + rows
        else:
            r = rows
        v = tl.load(at + at_rows(r, R2, stride_r1, stride_r2, SPLIT)[:, None], mask=mask, other=0.0).to(WIDE)
        if MAGNITUDE:
            v = tl.abs(v)
        key = tl.where(mask, key_of(v, LARGEST, FIND, WIDE), lowest)
        if FIND:
            row = tl.where(key > best, rows[:, None], row)
        best = tl.maximum(best, key)
    total = tl.max(best, 0)
    to = part * N + cols
    if FIND:
        found = tl.min(tl.where(best == total[None, :], row, 0x7FFFFFFF), 0)
        tl.store(rows_out + to, top + found, mask=cols < N)
    if WHOLE:
        if not FIND:
            tl.store(out + to, number_of(total, LARGEST, WIDE).to(out.dtype.element_ty), mask=cols < N)
    else:
        tl.store(out + to, total, mask=cols < N)


@triton.jit
def maximum_kernel(a, b, out, n, LARGEST: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    v, w = tl.load(a + i, mask=i < n, other=0.0), tl.load(b + i, mask=i < n, other=0.0)
    first = key_of(v.to(WIDE), LARGEST, False, WIDE) >= key_of(w.to(WIDE), LARGEST, False, WIDE)
    tl.store(out + i, tl.where(first, v, w), mask=i < n)


@triton.jit
def maximum_gradient_kernel(g, a, b, out, n, LARGEST: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    u = tl.load(g + i, mask=i < n, other=0.0).to(WIDE)
    v = tl.load(a + i, mask=i < n, other=0.0).to(WIDE)
    w = tl.load(b + i, mask=i < n, other=0.0).to(WIDE)
    less = (v < w) if LARGEST else (v > w)
    # Not `* 0.5`, which LLVM would do in the half type, by its fma.
    half = divide(u, tl.full((SIZE,), 2.0, WIDE))
    grad = tl.where(less, 0.0, tl.where(v == w, half, u))
    tl.store(out + i, grad.to(out.dtype.element_ty), mask=i < n)


def extreme(x: Tensor, largest: bool, magnitude: bool = False) -> Tensor:
    """x (R1, R2, N1, N2), R > 0, any strides -> (N1 * N2,): MAX or MIN of each column (of the |x|)."""
    keys, _ = _run(x, largest, magnitude, False)
    return keys if keys.dtype == x.dtype else _numbers(keys.amax(0), largest).to(x.dtype)


def position(x: Tensor, largest: bool) -> Tensor:
    """The row of the first largest (smallest) element of each column, int64; zeros are equal, NaN comes first."""
    keys, rows = _run(x, largest, False, True)
    if len(rows) == 1:
        return rows[0]
    return rows.masked_fill_(keys != keys.amax(0), torch.iinfo(torch.int64).max).amin(0)


def _numbers(keys: Tensor, largest: bool) -> Tensor:
    """`number_of`."""
    keys = keys if largest else ~keys
    wide, shift = (torch.float64, 63) if keys.dtype == torch.int64 else (torch.float32, 31)
    return (keys ^ ((keys >> shift) & (2**shift - 1))).view(wide)


def _run(x: Tensor, largest: bool, magnitude: bool, find: bool) -> tuple[Tensor, Tensor]:
    """(N,) results if one program sees a whole column, else keys (parts, N); and the rows (parts, N)."""
    rows, columns = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if along(x):
        lanes = min(1024, next_power_of_2(rows))
        cols = min(next_power_of_2(columns), max(1, 1024 // lanes))
        warps = 1
    else:
        cols = min(next_power_of_2(columns), 128)
        lanes = min(max(1, 2048 // cols), next_power_of_2(rows))
        warps = 4
    tiles = cdiv(columns, cols)
    parts = max(1, min(cdiv(rows, LEAST_ROWS), BUSY // max(1, tiles)))
    part = cdiv(cdiv(rows, parts), lanes) * lanes
    # A row is counted in 32 bits within its part.
    part = min(part, 2**30)
    parts = cdiv(rows, part)
    integer = torch.int64 if wide == torch.float64 else torch.int32
    shape, dtype = ((columns,), x.dtype) if parts == 1 else ((parts, columns), integer)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    found = torch.empty((parts, columns) if find else (0,), dtype=torch.int64, device=x.device)
    launch(
        extreme_kernel, (tiles * parts,), x, out, found, rows, x.shape[1], columns, x.shape[3], *x.stride(), part,
        LARGEST=largest, MAGNITUDE=magnitude, FIND=find, WHOLE=parts == 1, ROWS=lanes, COLS=cols,
        SPLIT=x.shape[0] > 1, FAR=rows >= 2**31, WIDE=tl.float64 if wide == torch.float64 else tl.float32,
        num_warps=warps,
    )  # fmt: skip
    return out, found


def maximum(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    """a, b: contiguous, one shape and dtype -> the larger (smaller) of each pair, NaN if either is."""
    out = torch.empty_like(a)
    _elementwise(maximum_kernel, a, b, out, largest=largest)
    return out


def maximum_gradient(g: Tensor, a: Tensor, b: Tensor, largest: bool) -> Tensor:
    """The gradient of a; g, a, b: contiguous, one shape and dtype. Half of g where a equals b."""
    out = torch.empty_like(g)
    _elementwise(maximum_gradient_kernel, g, a, b, out, largest=largest)
    return out


def _elementwise(kernel: triton.JITFunction, *tensors: Tensor, largest: bool) -> None:
    n = tensors[0].numel()
    launch(
        kernel, (cdiv(n, SIZE),), *tensors, n, LARGEST=largest, SIZE=SIZE,
        WIDE=tl.float64 if tensors[0].dtype == torch.float64 else tl.float32,
    )  # fmt: skip
