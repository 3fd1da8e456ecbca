"""Mixtures of experts on a GPU (SPEC.md, "Mixtures of experts"): routing, rows to experts, and their sum by token."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import LANES, exp_f32, from_order_key, minus_zero, order_key, tree_sum
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2

# Slots that one kernel puts in order, each by counting those before it.
MOST_COUNTED = 8192
MOST_EXPERTS = LANES.value
COLUMNS = 1024


@triton.jit(do_not_specialize=["n", "rank_programs"])
def expert_groups_kernel(
    index, order, inverse, offs, n, E, rank_programs, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The first programs find the place of BLOCK slots each, the others where BLOCK experts end."""
    program = tl.program_id(0)
    if program < rank_programs:
        i = program * BLOCK + tl.arange(0, BLOCK)
        mine = tl.load(index + i, mask=i < n, other=0).to(tl.int32)
        rank = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, n, STEP):
            j = start + tl.arange(0, STEP)
            other = tl.load(index + j, mask=j < n, other=2147483647).to(tl.int32)[None, :]
            before = (other < mine[:, None]) | ((other == mine[:, None]) & (j[None, :] < i[:, None]))
            rank += tl.sum(before.to(tl.int32), 1)
        tl.store(inverse + i, rank.to(tl.int64), mask=i < n)
        tl.store(order + rank, i.to(tl.int64), mask=i < n)
    else:
        g = (program - rank_programs) * BLOCK + tl.arange(0, BLOCK)
        end = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, n, STEP):
            j = start + tl.arange(0, STEP)
            other = tl.load(index + j, mask=j < n, other=2147483647).to(tl.int32)[None, :]
            end += tl.sum((other <= g[:, None]).to(tl.int32), 1)
        tl.store(offs + g, end, mask=g < E)


def groups(index: Tensor, experts: int, order: Tensor, inverse: Tensor, offs: Tensor) -> bool:
    """Writes, for slots with expert index (n,), 0 .. experts: the slots by ascending expert and slot (n,), their
    places (n,), int64, and the experts' ends (experts,) int32. False, and nothing, where there are too many.
    """
    n = index.shape[0]
    if n > MOST_COUNTED:
        return False
    programs = cdiv(n, 64)
    launch(expert_groups_kernel, (programs + cdiv(experts, 64),), index, order, inverse, offs, n, experts, programs,
           BLOCK=64, STEP=64)  # fmt: skip
    return True


@triton.jit
def expert_rows_kernel(x, order, out, k, columns, stride_x, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # Division of 64-bit integers takes floating-point steps on some GPUs.
    source = (tl.load(order + row).to(tl.int32) // k).to(tl.int64)
    tl.store(out + row * columns + j, tl.load(x + source * stride_x + j, mask=j < columns), mask=j < columns)


def rows(x: Tensor, order: Tensor, k: int, out: Tensor) -> None:
    """out[r] = x[order[r] // k], rows of x (T, C), C > 0, contiguous along C."""
    columns = x.shape[1]
    grid = (len(out), cdiv(columns, COLUMNS))
    launch(expert_rows_kernel, grid, x, order, out, k, columns, x.stride(0), COLUMNS=COLUMNS)


@triton.jit
def expert_combine_kernel(
    x, weights, inverse, out, k, columns, stride_x, WEIGHTED: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = j < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    for slot in range(k):
        place = tl.load(inverse + token * k + slot)
        v = tl.load(x + place * stride_x + j, mask=mask, other=0.0).to(tl.float32)
        if WEIGHTED:
            v = v * tl.load(weights + token * k + slot).to(tl.float32)
        total = tl.where(slot == 0, v, total + v)
    tl.store(out + token * columns + j, total.to(out.dtype.element_ty), mask=mask)


def combine(x: Tensor, weights: Tensor | None, inverse: Tensor, k: int, out: Tensor) -> None:
    """out (T, C): for each token the sum of its k rows of x (T * k, C), times its weights (T, k), contiguous."""
    columns = x.shape[1]
    grid = (len(out), cdiv(columns, COLUMNS))
    launch(expert_combine_kernel, grid, x, x if weights is None else weights, inverse, out, k, columns, x.stride(0),
           WEIGHTED=weights is not None, COLUMNS=COLUMNS)  # fmt: skip


@triton.jit
def router_kernel(
    logits, weights, index, stride, E, K: tl.constexpr, KP: tl.constexpr, EP: tl.constexpr, NORM: tl.constexpr
):  # fmt: skip
    """One row: its softmax, the K largest, a place in the low half of a key so that no two are equal."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, EP)
    here = j < E
    x = tl.load(logits + row * stride + j, mask=here, other=float("-inf")).to(tl.float32)
    m = from_order_key(tl.max(order_key(x), 0))
    e = exp_f32(x - m)
    total = tree_sum(tl.where(here, e, minus_zero(tl.float32)), EP)
    p = e * tl.div_rn(tl.full([], 1.0, tl.float32), total)
    keys = tl.where(here, (order_key(p).to(tl.int64) << 32) | (EP - 1 - j).to(tl.int64), -1)
    slot = tl.arange(0, KP)
    found = tl.zeros((KP,), tl.float32) + minus_zero(tl.float32)
    for i in tl.static_range(K):
        best = tl.max(keys, 0)
        keys = tl.where(keys == best, -1, keys)
        value = from_order_key((best >> 32).to(tl.int32))
        found = tl.where(slot == i, value, found)
        tl.store(index + row * K + i, EP - 1 - (best & 0xFFFFFFFF))
    if NORM:
        found = tl.div_rn(found, tree_sum(found, KP) + tl.zeros((KP,), tl.float32))
    tl.store(weights + row * K + slot, found, mask=slot < K)


def router(logits: Tensor, norm: bool, weights: Tensor, index: Tensor) -> bool:
    """weights (T, k) fp32 and experts (T, k) int64 of logits (T, E), contiguous along E; False for too many experts."""
    T, E = logits.shape
    k = weights.shape[1]
    if E > MOST_EXPERTS or k > 32:
        return False
    EP = next_power_of_2(E)
    launch(router_kernel, (T,), logits, weights, index, logits.stride(0), E, K=k, KP=next_power_of_2(k), EP=EP,
           NORM=norm, num_warps=1 if EP <= 256 else 4)  # fmt: skip
    return True
