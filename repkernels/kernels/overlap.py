"""Kernels that are set up while the one before them still runs, so that small ones cost little more than their work.

A kernel that `launch` starts with overlap=True calls `begin` before it reads what others wrote, or writes. What no
kernel of this chain writes, such as a weight, may be fetched into L2 before that.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FETCHED = tl.constexpr(1024)  # bytes of one request


@triton.jit
def begin(OVERLAP: tl.constexpr):
    """Lets the next kernel be set up, and waits for the results of those before."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch(at):
    """Has 1024 bytes from each pointer, a multiple of 16, read into L2. A hint: no result depends on it."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 1024; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
