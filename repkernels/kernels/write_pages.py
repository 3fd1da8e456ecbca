"""Keys and values of new tokens into pages, on a GPU: both in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.overlap import begin
from repkernels.kernels.sizes import cdiv, next_power_of_2

ELEMENTS = 1024  # that a program copies


@triton.jit
def copy_heads(
    new, cache, slot, token, first, H, stride_nt, stride_nh, stride_ne, stride_cp, stride_cs, stride_ch,
    stride_ce, PAGE: tl.constexpr, E: tl.constexpr, BH: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Heads first .. first + BH - 1 of one token."""
    h = (first + tl.arange(0, BH)).to(tl.int64)[:, None]
    e = tl.arange(0, BE)[None, :]
    mask = (h < H) & (e < E)
    source = new + token * stride_nt + h * stride_nh + e * stride_ne
    target = cache + slot // PAGE * stride_cp + slot % PAGE * stride_cs + h * stride_ch + e * stride_ce
    tl.store(target, tl.load(source, mask=mask), mask=mask)


@triton.jit
def write_pages_kernel(
    key, key_cache, value, value_cache, slots, count, H, k_programs, k0, k1, k2, kc0, kc1, kc2, kc3,
    v0, v1, v2, vc0, vc1, vc2, vc3, PAGE: tl.constexpr, E: tl.constexpr, EV: tl.constexpr, BE: tl.constexpr,
    BEV: tl.constexpr, BH: tl.constexpr, BHV: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Programs (token, part): the first parts copy heads of the key, the others of the value. count: of all slots."""
    begin(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slots + token)
    H = tl.where((slot >= 0) & (slot < count), H, 0)
    if part < k_programs:
        copy_heads(key, key_cache, slot, token, part * BH, H, k0, k1, k2, kc0, kc1, kc2, kc3, PAGE, E, BH, BE)
    else:
        copy_heads(
            value, value_cache, slot, token, (part - k_programs) * BHV, H, v0, v1, v2, vc0, vc1, vc2, vc3,
            PAGE, EV, BHV, BEV,
        )  # fmt: skip


def write_pages(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """As ops.write_pages, of checked arguments."""
    pages, page_size, heads, size = key_cache.shape
    value_size = value_cache.shape[3]
    (BE, BH), (BEV, BHV) = (_block(heads, n) for n in (size, value_size))
    k_programs, v_programs = (cdiv(heads, n) if size else 0 for n, size in ((BH, size), (BHV, value_size)))
    overlap = can_overlap(key.device)
    launch(
        write_pages_kernel, (key.shape[0], k_programs + v_programs), key, key_cache, value, value_cache,
        slots.contiguous(), pages * page_size, heads, k_programs, *key.stride(), *key_cache.stride(),
        *value.stride(), *value_cache.stride(), PAGE=max(page_size, 1), E=size, EV=value_size, BE=BE, BEV=BEV, BH=BH,
        BHV=BHV, OVERLAP=overlap, overlap=overlap, num_warps=4,
    )  # fmt: skip


def _block(heads: int, size: int) -> tuple[int, int]:
    """Powers of two: elements of a head, and heads of a program."""
    elements = next_power_of_2(size)
    return elements, min(next_power_of_2(heads), max(1, ELEMENTS // elements))
