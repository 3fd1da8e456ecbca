"""Products of groups of rows with a matrix each, on a GPU (SPEC.md, "Grouped products"); nothing is read by the host.

Rows are cut at multiples of BM and at the ends of the groups. The cuts are those of the tiles and those of the groups,
merged in ascending order, so a program finds its rows and group by counting ends of groups that come before its cut.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.digits import Digits, padded
from repkernels.kernels.arith import store_result, tile_of
from repkernels.kernels.configuration import Configuration, fitted
from repkernels.kernels.engine import engine_for
from repkernels.kernels.grouped_mm_weight import grouped_mm_weight
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed import digit_sum
from repkernels.kernels.matmul_fixed_finish import LONGEST_INT32, LONGEST_INT64, finish
from repkernels.kernels.matmul_fixed_hopper import on_hopper
from repkernels.kernels.matmul_native import lacks_bfloat16
from repkernels.kernels.matmul_ordered import CHUNK, chain
from repkernels.kernels.operand import describe, describe_digits, describe_vectors, readable
from repkernels.kernels.quantize import quantize
from repkernels.kernels.sizes import cdiv, next_power_of_2

__all__ = ["grouped_mm", "grouped_mm_weight", "quantize"]


@triton.jit
def part_of(offs, part, T, G, BM: tl.constexpr, GP: tl.constexpr):
    """(group, first row, row after the last) of part number `part`; group G are the rows behind the last group.

    A group's end e comes after the starts of the tiles below it, so it is cut number g + cdiv(e, BM).
    """
    g = tl.arange(0, GP)
    ends = tl.minimum(tl.load(offs + g, mask=g < G, other=0).to(tl.int32), T)
    passed = (g < G) & (g + tl.cdiv(ends, BM) <= part)
    group = tl.sum(passed.to(tl.int32), 0)
    start = tl.max(tl.where(passed, ends, 0), 0)
    end = tl.min(tl.where(passed | (g >= G), T, ends), 0)
    tile = part - group
    return group, tl.maximum(start, tile * BM), tl.minimum(end, tile * BM + BM)


@triton.jit(do_not_specialize=["T"])
def grouped_native_kernel(
    a, b, offs, c, T, N, K, G, stride_cm, stride_cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, GP: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """a: descriptor over (T, K); b over (G * N, K), or with ACROSS over (G * K, N), K a multiple of BK."""
    parts = tl.cdiv(T, BM) + G
    pm, pn = tile_of(tl.program_id(0), parts * BM, N, BM, BN, GROUP)
    group, first, last = part_of(offs, pm, T, G, BM, GP)
    if first < last:
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.where(group < G, K, 0), BK):
            y = b.load([group * K + k, pn * BN]) if ACROSS else b.load([group * N + pn * BN, k]).T
            acc = tl.dot(a.load([first, k]), y, acc)
        rows = first + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        store_result(acc, c, c, pm * 0, rows, cols, last, N, 0, stride_cm, stride_cn, 0)


@triton.jit(do_not_specialize=["T"])
def grouped_fixed_kernel(
    digits_a, digits_b, scale_a, scale_b, offs, c, a, b, T, N, K, Kpad, G, stride_am, stride_ak, stride_bg, stride_bk,
    stride_bn, stride_cm, stride_cn, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, GP: tl.constexpr, WINDOW: tl.constexpr, WINDOWS: tl.constexpr, WINDOW16: tl.constexpr,
):  # fmt: skip
    """digits_a: descriptor over (S * T, Kpad); digits_b over (S * G * N, Kpad)."""
    parts = tl.cdiv(T, BM) + G
    pm, pn = tile_of(tl.program_id(0), parts * BM, N, BM, BN, GROUP)
    group, first, last = part_of(offs, pm, T, G, BM, GP)
    rows = first + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    if first < last:
        if group < G:
            row_b = group * N + pn * BN
            if WINDOWS:
                total = tl.zeros((BM, BN), tl.int64)
                for k in tl.range(0, Kpad, WINDOW, num_stages=1):
                    total += digit_sum(digits_a, digits_b, first, row_b, T, G * N, k, min(k + WINDOW, Kpad), S, BM, BN,
                                       BK, WINDOW16)  # fmt: skip
            else:
                total = digit_sum(digits_a, digits_b, first, row_b, T, G * N, 0, Kpad, S, BM, BN, BK, WINDOW16)
            finish(total.to(tl.float32), scale_a, scale_b, c, c, a, b, group, pm * 0, group, rows, cols, last, N, K, 0,
                   stride_am, stride_ak, stride_bg, stride_bk, stride_bn, 0, stride_cm, stride_cn, S, 0)  # fmt: skip
        else:
            zeros = tl.zeros((BM, BN), tl.float32)
            store_result(zeros, c, c, pm * 0, rows, cols, last, N, 0, stride_cm, stride_cn, 0)


@triton.jit(do_not_specialize=["T"])
def grouped_ordered_kernel(
    a, b, offs, c, T, N, K, G, stride_am, stride_ak, stride_bg, stride_bk, stride_bn, stride_cm, stride_cn,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(T, BM) + G
    pm, pn = tile_of(tl.program_id(0), parts * BM, N, BM, BN, GROUP)
    group, first, last = part_of(offs, pm, T, G, BM, GP)
    if first < last:
        rows = first + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        pa = a + rows.to(tl.int64)[:, None] * stride_am
        pb = b + group.to(tl.int64) * stride_bg + cols.to(tl.int64)[None, :] * stride_bn
        zero = tl.zeros((BM, BN), tl.float32)
        length = tl.where(group < G, K, 0)
        total = chain(pa, pb, zero, 0, min(length, CHUNK), rows, cols, last, N, stride_ak, stride_bk, BK, False)
        for k in tl.range(CHUNK, length, CHUNK, num_stages=1):
            total += chain(pa, pb, zero, k, min(length, k + CHUNK), rows, cols, last, N, stride_ak, stride_bk, BK,
                           False)  # fmt: skip
        store_result(total, c, c, pm * 0, rows, cols, last, N, 0, stride_cm, stride_cn, 0)


@triton.jit(do_not_specialize=["T"])
def grouped_outer_kernel(
    a, b, offs, c, T, N, K, G, stride_am, stride_ak, stride_bg, stride_bk, stride_bn, stride_cm, stride_cn,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The same chains written out, one k at a time: binary64, and GPUs whose fp32 `tl.dot` is not one ascending chain.

    Rows and columns past the end repeat the last one, and are not stored.
    """
    parts = tl.cdiv(T, BM) + G
    pm, pn = tile_of(tl.program_id(0), parts * BM, N, BM, BN, GROUP)
    group, first, last = part_of(offs, pm, T, G, BM, GP)
    if first < last:
        rows = first + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        pa = a + tl.minimum(rows, last - 1).to(tl.int64) * stride_am
        pb = b + group.to(tl.int64) * stride_bg + tl.minimum(cols, N - 1).to(tl.int64) * stride_bn
        length = tl.where(group < G, K, 0)
        total = tl.zeros((BM, BN), TYPE)
        for k0 in range(0, length, CHUNK):
            acc = tl.zeros((BM, BN), TYPE)
            for _ in range(k0, min(length, k0 + CHUNK)):
                x = tl.load(pa).to(TYPE)
                y = tl.load(pb).to(TYPE)
                acc = tl.fma(tl.broadcast_to(x[:, None], (BM, BN)), tl.broadcast_to(y[None, :], (BM, BN)), acc)
                pa += stride_ak
                pb += stride_bk
            total = tl.where(k0 == 0, acc, total + acc)
        store_result(total, c, c, pm * 0, rows, cols, last, N, 0, stride_cm, stride_cn, 0)


# The first of at least as many rows as groups have on the average; one configuration for what has more.
NATIVE = (
    Configuration(16, 64, 128, 4, 5),
    Configuration(64, 128, 64, 4, 4),
    Configuration(128, 128, 64, 8, 4),
)
FIXED = {
    1: (Configuration(16, 64, 256, 4, 4), Configuration(64, 128, 128, 4, 4), Configuration(128, 128, 128, 8, 3)),
    2: (Configuration(16, 64, 128, 4, 4), Configuration(64, 128, 128, 4, 3), Configuration(128, 128, 128, 8, 3)),
    3: (Configuration(16, 64, 128, 4, 3), Configuration(64, 64, 128, 4, 3), Configuration(128, 64, 128, 8, 3)),
    4: (Configuration(16, 64, 128, 4, 3), Configuration(64, 64, 64, 4, 3), Configuration(128, 64, 128, 8, 2)),
}
ORDERED = (Configuration(32, 64, 32, 4, 3),)
WINDOW16 = (Configuration(64, 64, 64, 4, 2),)


def _choice(
    configurations: tuple[Configuration, ...], T: int, G: int, element: int, device: torch.device, result: int = 0
) -> Configuration:
    chosen = next((c for c in configurations if T <= c.BM * G), configurations[-1])
    return fitted(chosen, element, device, result)


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, contract: str, b_digits: Digits | None) -> None:
    """out (T, N): row i is a[i] (K) @ b[g] (K, N) for its group g, offs[g - 1] <= i < offs[g]; +0 behind the last.

    a (T, K), b (G, K, N): any strides. offs (G,): int32, ascending. b_digits: kept digits of b's columns.
    """
    (T, K), (G, _, N) = a.shape, b.shape
    if out.numel() == 0:
        return
    if K == 0 or G == 0:
        out.zero_()
        return
    sides: tuple[Any, ...] = (T, N, K, G)
    GP = next_power_of_2(G)
    if contract == "ordered":
        _ordered(a, b, offs, out, sides, GP)
    elif contract == "native":
        _native(a, b, offs, out, sides, GP)
    else:
        _fixed(a, b, offs, out, sides, GP, int(contract[5:]) // 8, b_digits)


def _grid(c: Configuration, T: int, N: int, G: int) -> tuple[int]:
    return ((cdiv(T, c.BM) + G) * cdiv(N, c.BN),)


def _ordered(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, sides: tuple[Any, ...], GP: int) -> None:
    T, N, _, G = sides
    c = _choice(ORDERED, T, G, a.element_size(), a.device)
    arguments = (a, b, offs, out, *sides, *a.stride(), *b.stride(), *out.stride())
    common: dict[str, Any] = {"CHUNK": CHUNK, "BM": c.BM, "BN": c.BN, "GROUP": c.GROUP, "GP": GP}
    if out.dtype == torch.float64 or torch.version.hip is not None:
        kind = tl.float64 if out.dtype == torch.float64 else tl.float32
        launch(grouped_outer_kernel, _grid(c, T, N, G), *arguments, TYPE=kind, num_warps=c.num_warps, **common)
        return
    launch(grouped_ordered_kernel, _grid(c, T, N, G), *arguments, BK=c.BK, num_warps=c.num_warps,
           num_stages=c.num_stages, **common)  # fmt: skip


def _native(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, sides: tuple[Any, ...], GP: int) -> None:
    if a.dtype == torch.bfloat16 and lacks_bfloat16(a.device):
        raise NotImplementedError(
            f"contract: native has no bfloat16 tensor cores on {a.device}; use fixed16 or float16"
        )
    T, N, K, G = sides
    c = _choice(NATIVE, T, G, a.element_size(), a.device)
    rows = a if readable(a) else describe_vectors(a.contiguous()[None], c.BM, c.BK)[0]
    left = describe(a, [c.BM, c.BK]) if rows is a else rows
    flat = b.reshape(G * K, N) if b.stride(2) == 1 and b.stride(0) == K * b.stride(1) and K % c.BK == 0 else None
    across = flat is not None and readable(flat)
    right = describe(flat, [c.BK, c.BN]) if flat is not None and across else _rows_of(b.transpose(1, 2), c.BN, c.BK)
    launch(grouped_native_kernel, _grid(c, T, N, G), left, right, offs, out, *sides, *out.stride(), BM=c.BM, BN=c.BN,
           BK=c.BK, GROUP=c.GROUP, GP=GP, ACROSS=across, num_warps=c.num_warps,
           num_stages=c.num_stages)  # fmt: skip


def _rows_of(vectors: Tensor, rows: int, BK: int) -> Any:
    """A descriptor over (G * N, K) of vectors (G, N, K)."""
    descriptor, across = describe_vectors(vectors, rows, BK)
    if across:  # one group alone, by columns
        descriptor, _ = describe_vectors(vectors.contiguous(), rows, BK)
    return descriptor


def _fixed(
    a: Tensor, b: Tensor, offs: Tensor, out: Tensor, sides: tuple[Any, ...], GP: int, S: int, b_digits: Digits | None
) -> None:
    T, N, K, G = sides
    Kpad = padded(K)
    if Kpad > LONGEST_INT64[S]:
        raise NotImplementedError(f"mat_a: {K} terms are too many for {S} digits; at most {LONGEST_INT64[S]}")
    window16 = engine_for(a.device) == "window16"
    if b_digits is None or not b_digits.planes.numel():
        b_digits = quantize(b.transpose(1, 2), S, None if b_digits is None else b_digits.scale)
    a_digits = quantize(a[None], S)
    # Elsewhere than on Hopper a sum may pass through shared memory.
    result = 0 if on_hopper(a.device) else 4
    c = _choice(WINDOW16 if window16 else FIXED[S], T, G, 3 * S if window16 else S, a.device, result)
    window = LONGEST_INT32 // S // c.BK * c.BK
    launch(grouped_fixed_kernel, _grid(c, T, N, G), describe_digits(a_digits, c.BM, c.BK),
           describe_digits(b_digits, c.BN, c.BK), a_digits.scale, b_digits.scale, offs, out, a, b, T, N, K, Kpad, G,
           *a.stride(), *b.stride(), *out.stride(), S=S, BM=c.BM, BN=c.BN, BK=c.BK, GROUP=c.GROUP, GP=GP, WINDOW=window,
           WINDOWS=Kpad > window, WINDOW16=window16, num_warps=c.num_warps, num_stages=c.num_stages)  # fmt: skip
