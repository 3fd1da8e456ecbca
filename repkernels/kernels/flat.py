"""One kernel over a list of tensors: a table of their addresses, and one of the pieces that programs take.

Both tables are functions of addresses and sizes alone, and are kept as long as the same ones come again.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float64: tl.float64}

# Tables that were uploaded while a CUDA graph was captured: every replay uploads them again.
_captured: list[Tensor] = []


class Flat(NamedTuple):
    """table: int64 (tensors, 1 + columns), an element count, then the addresses of the tensors that belong together;
    pieces: int32 (programs, 2), a row of the table and the number of the piece in its tensors; ALIGNED: all addresses
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


def flats(columns: Sequence[Sequence[Tensor]], piece: int) -> list[Flat]:
    """The tables of a list of tensors for each column, contiguous, of equal sizes across columns; one for those that
    are aligned and one for the others, either of which may be missing."""
    device = columns[0][0].device
    rows = list(zip([x.numel() for x in columns[0]], *([x.data_ptr() for x in c] for c in columns), strict=True))
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = []
    for aligned in (True, False):
        some = tuple(row for row in rows if row[0] and all(a % 16 == 0 for a in row[1:]) == aligned)
        if some:
            make = _tables.__wrapped__ if capturing else _tables
            found.append(Flat(*make(some, piece, device, stream), aligned))
            if capturing:
                _captured.extend(found[-1][:2])
    return found


@functools.lru_cache(maxsize=64)
def _tables(rows: tuple[tuple[int, ...], ...], piece: int, where: torch.device, stream: int) -> tuple[Tensor, Tensor]:
    """stream: the CUDA stream that uploads and uses them, since nothing waits for the upload."""
    sizes = tuple(row[0] for row in rows)
    pieces = _pieces(sizes, piece)
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    return _upload(table, where), _upload(pieces, where)


@functools.lru_cache(maxsize=64)
def _pieces(sizes: tuple[int, ...], piece: int) -> Tensor:
    counts = torch.tensor([triton.cdiv(size, piece) for size in sizes], dtype=torch.int64, device="cpu")
    which = torch.arange(len(sizes), device="cpu").repeat_interleave(counts)
    number = torch.arange(len(which), device="cpu") - (counts.cumsum(0) - counts)[which]
    return torch.stack([which, number], 1).to(torch.int32)


def _upload(x: Tensor, where: torch.device) -> Tensor:
    if where.type != "cuda":
        return x.to(where)
    return x.pin_memory().to(where, non_blocking=True)
