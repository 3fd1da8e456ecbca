"""The one way to start a kernel: no compiler may contract a multiplication and an addition, on any launch."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_warps: int | None = None


@contextlib.contextmanager
def use_warps(count: int) -> Iterator[None]:
    """Every kernel of the block gets `count` warps, whatever its launcher asks for: to prove that no bit follows them.

    Only for kernels of Triton's that are indifferent to it; one process, one thread.
    """
    global _warps
    before, _warps = _warps, count
    try:
        yield
    finally:
        _warps = before


def launch(
    kernel: Any,
    grid: Sequence[int],
    *args: Any,
    num_warps: int = 4,
    num_stages: int = 3,
    overlap: bool = False,
    registers: int | None = None,
    **constexprs: Any,
) -> None:
    """Starts `kernel` over `grid` on the device of its first tensor argument.

    An empty grid starts nothing. `enable_fp_fusion=False` keeps every product and sum its own rounding, so `tl.fma`
    is the only fused operation. overlap: the kernel may be set up while the one before it still runs, and waits for
    its results by `griddepcontrol`; only where `can_overlap`. registers: the most that a thread may have, where the
    target takes such a limit.
    """
    if math.prod(grid) == 0:
        return
    if overlap:
        constexprs["launch_pdl"] = True
    if _warps is not None:
        num_warps = _warps
    if registers is not None and torch.version.hip is None:
        constexprs["maxnreg"] = registers
    with _on(args):
        kernel[tuple(grid)](*args, num_warps=num_warps, num_stages=num_stages, enable_fp_fusion=False, **constexprs)


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """Whether the device can set a kernel up before the one ahead of it has ended."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (9, 0)


_HERE = contextlib.nullcontext()


def _on(args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    for arg in args:
        # A tensor has no `base`, and says so by an exception that takes longer than all the rest.
        tensor = arg if isinstance(arg, Tensor) else getattr(arg, "base", None)  # a descriptor's tensor
        if tensor is not None:
            elsewhere = tensor.is_cuda and tensor.get_device() != torch.cuda.current_device()
            return torch.cuda.device(tensor.device) if elsewhere else _HERE
    return _HERE
