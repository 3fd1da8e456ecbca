"""Ranges of work for kernels of (start, stop): every piece writes its own outputs, so their number changes no bit."""

from collections.abc import Callable
from typing import Any

import torch

from repkernels.cpu.threads import share

# Elements below which another thread costs more than it saves.
_LEAST = 1 << 15


def spread(kernel: Callable[..., Any], units: int, work: int, *args: Any) -> None:
    """Calls kernel(start, stop, *args) over all of range(units); `work` is how many elements that touches in all."""
    pieces = max(1, min(units, work // _LEAST, 4 * torch.get_num_threads()))
    share(lambda i: kernel(units * i // pieces, units * (i + 1) // pieces, *args), pieces)
