"""Golden cases by family: a module's `COMPUTE` gives the results of its operations through their public functions."""

from types import ModuleType

from repkernels.verify.cases import elementwise, unary

FAMILIES: tuple[ModuleType, ...] = (elementwise, unary)
