"""One kernel over a list of tensors: a table of their addresses, and one of the pieces that programs take.

Both tables are functions of addresses and sizes alone, and are kept as long as the same ones come again.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float64: tl.float64}


class Flat(NamedTuple):
    """table: int64 (tensors, 1 + columns), an element count, then the addresses of the tensors that belong together;
    pieces: int32 (programs, 2), a row of the table and the number of the piece in its tensors; aligned: all addresses
    are multiples of 16."""

    table: Tensor
    pieces: Tensor
    aligned: bool


@triton.jit
def place(pieces, table, COLUMNS: tl.constexpr, PIECE: tl.constexpr):
    """This program's row of addresses, its first element, and how many elements it has."""
    index = tl.program_id(0)
    row = table + tl.load(pieces + 2 * index).to(tl.int64) * (COLUMNS + 1)
    start = tl.load(pieces + 2 * index + 1).to(tl.int64) * PIECE
    return row + 1, start, tl.minimum(tl.load(row) - start, PIECE).to(tl.int32)


@triton.jit
def tensor_at(row, COLUMN: tl.constexpr, TYPE: tl.constexpr, start):
    """Element `start` of the tensor in a column."""
    return tl.load(row + COLUMN).to(tl.pointer_type(TYPE)) + start


@triton.jit
def elements(base, i, ALIGNED: tl.constexpr):
    """Pointers to elements i; ALIGNED: i are multiples of 8 with what follows, and so are read many at once."""
    at = base + i
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    return at


@triton.jit
def write_kernel(out, n, a: tl.int64, b: tl.int64, c: tl.int64, d: tl.int64):
    """out[0], ..., out[3] = a, b, c, d, as far as there are n elements."""
    i = tl.arange(0, 4)
    tl.store(out + i, tl.where(i == 0, a, tl.where(i == 1, b, tl.where(i == 2, c, d))), mask=i < n)


def flats(columns: Sequence[Sequence[Tensor]], piece: int) -> list[Flat]:
    """The tables of a list of tensors for each column, contiguous, of equal sizes across columns; one for those that
    are aligned and one for the others, either of which may be missing."""
    rows = list(zip([x.numel() for x in columns[0]], *([x.data_ptr() for x in c] for c in columns), strict=True))
    found = []
    for aligned in (True, False):
        some = tuple(row for row in rows if row[0] and all(a % 16 == 0 for a in row[1:]) == aligned)
        if some:
            table = numbers_on(some, columns[0][0].device)
            found.append(Flat(table, _pieces(table, tuple(row[0] for row in some), piece), aligned))
    return found


def numbers_on(numbers: tuple[Any, ...], where: torch.device) -> Tensor:
    """int64 numbers (or rows of them) on a device, without waiting for it."""
    stream, capturing = _stream(where)
    return written(numbers, where) if capturing else _uploaded(numbers, where, stream)


def written(numbers: tuple[Any, ...], where: torch.device) -> Tensor:
    """`numbers_on` by kernels alone, which a CUDA graph repeats: it would not keep the host's memory."""
    shape = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    out, flat = torch.empty(shape.shape, dtype=torch.int64, device=where), shape.reshape(-1).tolist()
    for i in range(0, len(flat), 4):
        four = (*flat[i : i + 4], 0, 0, 0)[:4]
        launch(write_kernel, (1,), out.view(-1)[i:], len(flat) - i, *four, num_warps=1)
    return out


def _stream(where: torch.device) -> tuple[int, bool]:
    """The present stream, since nothing but that waits for an upload, and whether a CUDA graph is captured on it."""
    if where.type != "cuda":
        return 0, False
    return torch.cuda.current_stream(where).cuda_stream, torch.cuda.is_current_stream_capturing()


@functools.lru_cache(maxsize=128)
def _uploaded(numbers: tuple[Any, ...], where: torch.device, stream: int) -> Tensor:
    host = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return host.pin_memory().to(where, non_blocking=True) if where.type == "cuda" else host


def _pieces(table: Tensor, sizes: tuple[int, ...], piece: int) -> Tensor:
    stream, capturing = _stream(table.device)
    if capturing:
        return _cut(table, sizes, piece)
    kept = _kept.get((sizes, piece, table.device, stream))
    if kept is None:
        kept = _kept[sizes, piece, table.device, stream] = _cut(table, sizes, piece)
        if len(_kept) > 64:
            del _kept[next(iter(_kept))]
    return kept


_kept: dict[Any, Tensor] = {}


def _cut(table: Tensor, sizes: tuple[int, ...], piece: int) -> Tensor:
    """On the device, of the sizes that the table holds."""
    total = sum(cdiv(size, piece) for size in sizes)
    counts = (table[:, 0] + (piece - 1)) // piece
    which = torch.arange(len(sizes), device=table.device).repeat_interleave(counts, output_size=total)
    number = torch.arange(total, device=table.device) - (counts.cumsum(0) - counts)[which]
    return torch.stack([which, number], 1).to(torch.int32)
