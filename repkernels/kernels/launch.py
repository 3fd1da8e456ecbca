"""The one way to start a kernel: no compiler may contract a multiplication and an addition, on any launch."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def launch(
    kernel: Any, grid: Sequence[int], *args: Any, num_warps: int = 4, num_stages: int = 3, **constexprs: Any
) -> None:
    """Starts `kernel` over `grid` on the device of its first tensor argument.

    An empty grid starts nothing. `enable_fp_fusion=False` keeps every product and sum its own rounding, so `tl.fma`
    is the only fused operation.
    """
    if math.prod(grid) == 0:
        return
    with _on(args):
        kernel[tuple(grid)](*args, num_warps=num_warps, num_stages=num_stages, enable_fp_fusion=False, **constexprs)


def _on(args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    for arg in args:
        tensor = getattr(arg, "base", arg)  # a descriptor's tensor
        if isinstance(tensor, Tensor):
            return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
    return contextlib.nullcontext()
