"""Compiles what would be launched: the launcher runs as it is, on a pretended GPU, and launches end after compiling.

So the kernels, configurations, argument types, divisibility hints and options that are checked are those that users'
calls give on that GPU. Triton's interpreter must be off (TRITON_INTERPRET) in this process.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import repkernels.kernels


class Target(NamedTuple):
    """A GPU that is not there: Triton's name for it, and what launchers ask of a device."""

    triton: GPUTarget
    capability: tuple[int, int]
    processors: int
    shared_memory: int

    @property
    def hip(self) -> bool:
        return self.triton.backend == "hip"


TARGETS = {
    "sm_80": Target(GPUTarget("cuda", 80, 32), (8, 0), 108, 166912),
    "sm_89": Target(GPUTarget("cuda", 89, 32), (8, 9), 142, 101376),
    "sm_90": Target(GPUTarget("cuda", 90, 32), (9, 0), 132, 232448),
    "sm_100": Target(GPUTarget("cuda", 100, 32), (10, 0), 148, 232448),
    "sm_120": Target(GPUTarget("cuda", 120, 32), (12, 0), 170, 101376),
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), (9, 4), 304, 65536),
    "gfx950": Target(GPUTarget("hip", "gfx950", 64), (9, 5), 256, 163840),
}


class Compiled(NamedTuple):
    """One kernel for one target: Triton's IR, the assembly, threads and bytes of shared memory of a program."""

    kernel: str
    target: str
    ir: str
    assembly: str
    threads: int
    shared_memory: int
    fusion: bool

    @property
    def nvidia(self) -> bool:
        return self.target.startswith("sm_")


class _Driver:
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


class _Device(NamedTuple):
    """What launchers see in place of the CPU that tensors really lie on."""

    target: str
    type: str = "cuda"
    index: int = 0


@contextmanager
def launches(target: str, skip: set[str] | None = None) -> Iterator[list[Compiled]]:
    """Collects what the launches inside the block compile to on `target`. Tensors live on the CPU, unwritten.

    skip: names of kernels whose launch does nothing, to which those compiled here are added: each is compiled once.
    """
    seen: list[Compiled] = []
    touched: set[JITFunction] = set()
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if skip is not None:
            if self.fn.__name__ in skip:
                return None
            skip.add(self.fn.__name__)
        if self not in touched:
            # Compiled kernels are kept by device, and every target is device 0 here.
            touched.add(self)
            self.device_caches.clear()
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found = _compiled(kernel, target)
        if found not in seen:
            seen.append(found)
        return kernel

    driver.set_active(_Driver(TARGETS[target].triton))
    with mock.patch.object(JITFunction, "run", compile_only), _pretending(target), _without_machine_code():
        yield seen


@contextmanager
def _without_machine_code() -> Iterator[None]:
    """Assembly is the last stage: what follows is the vendor's assembler, which takes long and is not looked at."""
    with ExitStack() as patches:
        for backend, stage in (("nvidia", "make_cubin"), ("amd", "make_hsaco")):
            patches.enter_context(mock.patch.object(backends[backend].compiler, stage, lambda *args: b""))
        yield


def modules() -> list[ModuleType]:
    """The modules of kernels."""
    names = [module.name for module in pkgutil.iter_modules(repkernels.kernels.__path__)]
    return [importlib.import_module(f"repkernels.kernels.{name}") for name in names]


@contextmanager
def _pretending(target: str) -> Iterator[None]:
    """Every function of the kernels' modules that is given a device sees the target in it, and so does what it asks."""
    about = TARGETS[target]
    properties = SimpleNamespace(
        multi_processor_count=about.processors,
        shared_memory_per_block_optin=about.shared_memory,
        major=about.capability[0],
        minor=about.capability[1],
        warp_size=about.triton.warp_size,
    )
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(torch.version, "hip", "pretended" if about.hip else None))
        patches.enter_context(mock.patch.object(torch.cuda, "get_device_properties", lambda device=None: properties))
        patches.enter_context(
            mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: about.capability)
        )
        for module in modules():
            for name, function in list(vars(module).items()):
                plain = inspect.isfunction(inspect.unwrap(function)) and not isinstance(function, JITFunction)
                if plain and "device" in inspect.signature(function).parameters:
                    patches.enter_context(mock.patch.object(module, name, _seeing(_Device(target), function)))
        yield


def _seeing(device: _Device, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        def seen(value: Any) -> Any:
            return device if isinstance(value, torch.device) else value

        return function(*map(seen, args), **{name: seen(value) for name, value in kwargs.items()})

    return call


def _compiled(kernel: Any, target: str) -> Compiled:
    asm, metadata = kernel.asm, kernel.metadata
    return Compiled(
        kernel=kernel.name,
        target=target,
        ir=asm["ttir"] if "ttir" in asm else asm["ttgir"],
        assembly=asm["ptx"] if "ptx" in asm else asm["amdgcn"],
        threads=metadata.num_warps * TARGETS[target].triton.warp_size,
        shared_memory=metadata.shared,
        fusion=metadata.enable_fp_fusion,
    )
