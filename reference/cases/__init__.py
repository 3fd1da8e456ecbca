"""Golden cases by family: each module has `cases()`, which lists them, and `COMPUTE`, the results of each operation."""

from types import ModuleType

from reference.cases import arithmetic, losses, norms, reductions, unary

FAMILIES: tuple[ModuleType, ...] = (arithmetic, losses, norms, reductions, unary)
