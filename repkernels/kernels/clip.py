"""Norms of a list of tensors on a GPU, and their scaling (SPEC.md, "Clipping gradients")."""

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import square_root
from repkernels.kernels.flat import TYPES, elements, flats, numbers_on, place, tensor_at
from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv

PIECE = 16384  # elements of a program that scales
SIZE = 1024


@triton.jit
def term(x, KIND: tl.constexpr, WIDE: tl.constexpr):
    """What is added up: x * x or |x|; for "inf" the bits of |x|, which order as integers do, NaN last."""
    x = x.to(WIDE)
    if KIND == "2":
        result = x * x
    elif KIND == "1":
        result = magnitude(x, WIDE).to(WIDE, bitcast=True)
    else:
        result = magnitude(x, WIDE)
    return result


@triton.jit
def magnitude(x, WIDE: tl.constexpr):
    """The bits of |x|."""
    if WIDE == tl.float64:
        result = x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        result = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return result


@triton.jit
def nothing(KIND: tl.constexpr, WIDE: tl.constexpr):
    """What changes no sum, or no maximum."""
    if KIND != "inf":
        result = minus_zero(WIDE)
    elif WIDE == tl.float64:
        result = tl.full([], 0, tl.int64)
    else:
        result = tl.full([], 0, tl.int32)
    return result


@triton.jit
def joined(lanes, KIND: tl.constexpr, WIDE: tl.constexpr, LANES: tl.constexpr):
    """One number of the lanes."""
    if KIND == "inf":
        result = tl.max(lanes, 0).to(WIDE, bitcast=True)
    else:
        result = tree_sum(lanes, LANES)
    return result


@triton.jit
def added(lanes, new, KIND: tl.constexpr):
    if KIND == "inf":
        result = tl.maximum(lanes, new)
    else:
        result = lanes + new
    return result


@triton.jit
def norm_kernel(
    table, pieces, out, TYPE: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr, ALIGNED: tl.constexpr,
    PIECE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """out[program]: the SUM, or MAX, of the terms of a piece."""
    row, start, n = place(pieces, table, 1, PIECE)
    x = tensor_at(row, 0, TYPE, start)
    lanes = tl.arange(0, LANES)
    total = tl.broadcast_to(nothing(KIND, WIDE), (LANES,))
    whole = n // LANES * LANES
    for at in tl.range(0, whole, LANES, loop_unroll_factor=4):
        total = added(total, term(tl.load(elements(x, at + lanes, ALIGNED)), KIND, WIDE), KIND)
    rest = whole + lanes < n
    last = term(tl.load(x + whole + lanes, mask=rest, other=0.0), KIND, WIDE)
    total = added(total, tl.where(rest, last, nothing(KIND, WIDE)), KIND)
    tl.store(out + tl.program_id(0), joined(total, KIND, WIDE, LANES))


@triton.jit
def join_kernel(sums, first, out, WIDE: tl.constexpr, KIND: tl.constexpr, LANES: tl.constexpr):
    """out[tensor]: the norm of a tensor, of the sums first[tensor] .. first[tensor + 1] - 1 of its pieces."""
    start = tl.load(first + tl.program_id(0))
    n = (tl.load(first + tl.program_id(0) + 1) - start).to(tl.int32)
    lanes = tl.arange(0, LANES)
    total = tl.broadcast_to(nothing(KIND, WIDE), (LANES,))
    for at in range(0, n, LANES):
        mask = at + lanes < n
        # A sum is its own term: none is negative.
        new = term(tl.load(sums + start + at + lanes, mask=mask, other=0.0), "inf" if KIND == "inf" else "1", WIDE)
        total = added(total, tl.where(mask, new, nothing(KIND, WIDE)), KIND)
    result = joined(total, KIND, WIDE, LANES)
    if KIND == "2":
        result = square_root(result)
    tl.store(out + tl.program_id(0), result)


@triton.jit
def scale_kernel(
    table, pieces, factor, TYPE: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr, PIECE: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    row, start, n = place(pieces, table, 1, PIECE)
    x = tensor_at(row, 0, TYPE, start)
    c = tl.load(factor).to(WIDE)
    whole = n // SIZE * SIZE
    for at in range(0, whole, SIZE):
        there = elements(x, at + tl.arange(0, SIZE), ALIGNED)
        tl.store(there, (tl.load(there).to(WIDE) * c).to(TYPE))
    i = whole + tl.arange(0, SIZE)
    tl.store(x + i, (tl.load(x + i, mask=i < n).to(WIDE) * c).to(TYPE), mask=i < n)


def norms(x: Sequence[Tensor], kind: str) -> Tensor:
    """(len(x),) in fp32, or fp64 of fp64: the norms of type `kind`, "1", "2" or "inf", of contiguous tensors of one
    dtype and device."""
    dtype, device = x[0].dtype, x[0].device
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    types = {"WIDE": TYPES[wide], "KIND": kind}
    found = dict.fromkeys(range(len(x)), torch.zeros((), dtype=wide, device=device))
    for aligned in (True, False):
        places = [i for i, v in enumerate(x) if v.numel() and (v.data_ptr() % 16 == 0) == aligned]
        if not places:
            continue
        some = [x[i] for i in places]
        counts = tuple(cdiv(v.numel(), BLOCK.value) for v in some)
        if max(counts) > BLOCK.value:
            raise NotImplementedError(f"gradients of more than {BLOCK.value**2} elements are not supported")
        (flat,) = flats([some], BLOCK.value)
        sums = torch.empty(sum(counts), dtype=wide, device=device)
        launch(
            norm_kernel, (len(sums),), flat.table, flat.pieces, sums, TYPE=TYPES[dtype], ALIGNED=flat.aligned,
            PIECE=BLOCK.value, LANES=LANES.value, **types,
        )  # fmt: skip
        out = torch.empty(len(some), dtype=wide, device=device)
        first = numbers_on((0, *itertools.accumulate(counts)), device)
        launch(join_kernel, (len(some),), sums, first, out, LANES=LANES.value, **types)
        if len(some) == len(x):
            return out
        found.update(zip(places, out.unbind(), strict=True))
    return torch.stack(list(found.values()))


def scale(x: Sequence[Tensor], factor: Tensor) -> None:
    """x = RN(x * factor), rounded to its dtype; contiguous tensors of one dtype and device; factor: a number there."""
    dtype = x[0].dtype
    for flat in flats([x], PIECE):
        launch(
            scale_kernel, (len(flat.pieces),), flat.table, flat.pieces, factor, TYPE=TYPES[dtype],
            WIDE=tl.float64 if dtype == torch.float64 else tl.float32, ALIGNED=flat.aligned, PIECE=PIECE, SIZE=SIZE,
        )  # fmt: skip
