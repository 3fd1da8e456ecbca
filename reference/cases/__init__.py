"""Golden cases by family: each module has `cases()`, which lists them, and `COMPUTE`, the results of each operation."""

from types import ModuleType

from reference.cases import elementwise, unary

FAMILIES: tuple[ModuleType, ...] = (elementwise, unary)
