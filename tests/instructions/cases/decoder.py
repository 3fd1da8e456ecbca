"""Rotary embeddings, mixtures of experts, int8 weights."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import grouped_mm, int8_linear, moe, rotary, write_pages
from tests.instructions.case import Case, everything, tensor
from tests.instructions.compiled import TARGETS

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64


def _rotary(dtype: torch.dtype, size: int, rotated: int, odd: bool = False) -> None:
    q, k = (tensor(2, 16, heads, size, dtype=dtype, odd=odd).transpose(1, 2) for heads in (8, 2))
    cos, sin = (tensor(2, 16, rotated, dtype=dtype, odd=odd) for _ in range(2))
    positions = torch.zeros(32, dtype=torch.int64)
    rotary.tables(positions, tensor(rotated // 2), 1.0, odd, cos, sin)
    sides = [[x, torch.empty_like(x), *(t[:, None].expand(*x.shape[:-1], rotated) for t in (cos, sin))] for x in (q, k)]
    rotary.rotate(sides[0], sides[1], odd, odd)


def _grouped(contract: str, dtype: torch.dtype, rows: int, size: int, odd: bool = False) -> None:
    a, b = tensor(rows, size, dtype=dtype, odd=odd), tensor(8, size, size, dtype=dtype, odd=odd)
    offs = tensor(8, dtype=torch.int32)
    grouped_mm.grouped_mm(a, b if odd else b.transpose(1, 2), offs, tensor(rows, size, dtype=dtype), contract, None)
    if rows > 128:
        grad = tensor(rows, size, dtype=dtype, odd=odd)
        grouped_mm.grouped_mm_weight(a, grad, offs, torch.empty_like(b), contract)


def _moe(experts: int, dtype: torch.dtype) -> None:
    slots = torch.zeros(64, dtype=torch.int64)
    x, out = tensor(64, 1024, dtype=dtype), tensor(32, 1024, dtype=dtype)
    moe.groups(slots, experts, slots.clone(), slots.clone(), tensor(experts, dtype=torch.int32))
    moe.rows(out, slots, 2, x)
    moe.combine(x, tensor(32, 2), slots, 2, out)
    moe.router(tensor(32, experts, dtype=dtype), True, tensor(32, 2), torch.zeros(32, 2, dtype=torch.int64))


def _int8(dtype: torch.dtype, rows: int, digits: int, odd: bool = False) -> None:
    size = 77 if odd else 1024
    x, w = tensor(rows, size, dtype=dtype, odd=odd), tensor(size, size, dtype=torch.int8, odd=odd)
    int8_linear.int8_linear(x, w, tensor(size), tensor(size, dtype=dtype), tensor(rows, size, dtype=dtype), digits)


def _pages(dtype: torch.dtype, size: int, odd: bool = False) -> None:
    caches = [tensor(8, 16, 4, size, dtype=dtype, odd=odd) for _ in range(2)]
    news = [tensor(8, 4, size, dtype=dtype, odd=odd) for _ in range(2)]
    write_pages.write_pages(*caches, torch.zeros(8, dtype=torch.int64), *news)


def cases(target: str) -> Iterator[Case]:
    """Each kernel, aligned; odd sizes, other contracts and numbers of digits on sm_90."""
    digits, signs = frozenset({"i8"}), frozenset({"i8", "f16"})
    chains = frozenset() if TARGETS[target].hip else frozenset({"f32"})
    yield Case("rotary bfloat16", partial(_rotary, BF16, 64, 64))
    yield Case("pages bfloat16", partial(_pages, BF16, 128))
    yield Case("grouped native", partial(_grouped, "native", BF16, 1024, 512), frozenset({"bf16"}))
    yield Case("grouped fixed16", partial(_grouped, "fixed16", BF16, 1024, 512), signs, digits)
    yield Case("grouped ordered", partial(_grouped, "ordered", FP32, 1024, 512), chains)
    yield Case("grouped float64", partial(_grouped, "ordered", FP64, 1024, 64))
    yield Case("experts bfloat16", partial(_moe, 8, BF16))
    yield Case("int8 narrow", partial(_int8, BF16, 16, 2), signs, digits)
    yield Case("int8", partial(_int8, BF16, 2048, 2), signs, digits)
    if everything(target):
        yield Case("rotary odd", partial(_rotary, FP32, 33, 10, True))
        yield Case("pages odd", partial(_pages, FP32, 33, True))
        yield Case("grouped fixed32, odd", partial(_grouped, "fixed32", FP32, 129, 77, True), signs, digits)
        yield Case("experts", partial(_moe, 128, FP32))
        yield Case("int8 odd", partial(_int8, FP32, 100, 3, True), signs, digits)
