"""Arithmetic of torch and NumPy on this thread with subnormals kept, whatever `torch.set_flush_denormal` says.

Kernels that Numba compiles see to it themselves (cpu/fpu.py).
"""

import contextlib
import sys
from collections.abc import Iterator

import torch

_SMALLEST_NORMAL = sys.float_info.min


@contextlib.contextmanager
def subnormals_kept() -> Iterator[None]:
    """Keeps them in the body, as far as that runs on the calling thread."""
    flushing = _SMALLEST_NORMAL * 0.5 == 0
    if flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushing:
            torch.set_flush_denormal(True)
