"""Both implementations of an operation: compiled for the CPU, and Triton's on the GPU or in its interpreter."""

import importlib
from types import ModuleType
from typing import NamedTuple

import pytest
import torch


class Backend(NamedTuple):
    package: str
    device: str

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"repkernels.{self.package}.{name}")


BACKENDS = (Backend("cpu", "cpu"), Backend("kernels", "cuda" if torch.cuda.is_available() else "cpu"))

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.package)
