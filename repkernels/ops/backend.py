"""The kernels for a device: repkernels.kernels on GPUs, repkernels.cpu on the CPU, imported when first used."""

import functools
import importlib
from types import ModuleType


@functools.cache
def backend(operation: str, device_type: str) -> ModuleType:
    """`repkernels.kernels.OPERATION` or `repkernels.cpu.OPERATION`: a CPU needs no Triton, and a GPU no numba."""
    return importlib.import_module(f"repkernels.{'cpu' if device_type == 'cpu' else 'kernels'}.{operation}")
