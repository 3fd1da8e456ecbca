"""Which hardware a `fixed` contraction runs on. Every engine gives the same bits."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

ENGINES = ("int8", "window16")

_forced: ContextVar[str | None] = ContextVar("repkernels_engine", default=None)


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Runs every `fixed` contraction on a GPU inside the block on the engine `name`: "int8" or "window16"."""
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def engine_for(device: torch.device) -> str:
    """The engine that `device` uses: "cpu", "int8", or "window16" where int8 tensor cores are missing or slow.

    Triton compiles no int8 product before sm_80, and sm_103 (B300) has a thirtieth of B200's int8 rate.
    """
    return _forced.get() or ("cpu" if device.type == "cpu" else _native_engine(device))


@functools.cache
def _native_engine(device: torch.device) -> str:
    if torch.version.hip is not None:
        return "int8"
    capability = torch.cuda.get_device_capability(device)
    return "window16" if capability < (8, 0) or capability == (10, 3) else "int8"
