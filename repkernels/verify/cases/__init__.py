"""Golden cases by family: a module's `COMPUTE` gives the results of its operations through their public functions."""

from types import ModuleType

from repkernels.verify.cases import arithmetic, losses, norms, reductions, unary

FAMILIES: tuple[ModuleType, ...] = (arithmetic, losses, norms, reductions, unary)
