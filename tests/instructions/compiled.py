"""Compiles what would be launched: the launcher runs as it is, on a pretended GPU, and launches end after compiling.

So the kernels, argument types, divisibility hints and options that are checked are those that users' calls give.
Triton's interpreter must be off (TRITON_INTERPRET) in this process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}


class Compiled(NamedTuple):
    """One kernel for one target: Triton's IR, the target's assembly, the machine code (NVIDIA), threads a program."""

    kernel: str
    target: str
    ir: str
    assembly: str
    cubin: bytes | None
    threads: int
    fusion: bool

    @property
    def nvidia(self) -> bool:
        return self.target.startswith("sm_")


class _Pretended:
    """As much of a Triton driver as a compilation asks for."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def launches(target: str) -> Iterator[list[Compiled]]:
    """Collects what the launches inside the block compile to on `target`. Tensors live on the CPU, unwritten."""
    seen: list[Compiled] = []
    run = JITFunction.run
    touched: set[JITFunction] = set()

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if self not in touched:
            touched.add(self)
            self.device_caches.clear()
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found = _compiled(kernel, target)
        if found not in seen:
            seen.append(found)
        return kernel

    hip = "pretended" if target.startswith("gfx") else None
    driver.set_active(_Pretended(TARGETS[target]))
    with mock.patch.object(JITFunction, "run", compile_only), mock.patch.object(torch.version, "hip", hip):
        yield seen


def _compiled(kernel: Any, target: str) -> Compiled:
    asm, metadata = kernel.asm, kernel.metadata
    threads = metadata.num_warps * TARGETS[target].warp_size
    assembly = asm["ptx"] if "ptx" in asm else asm["amdgcn"]
    return Compiled(kernel.name, target, asm["ttir"], assembly, asm.get("cubin"), threads, metadata.enable_fp_fusion)
