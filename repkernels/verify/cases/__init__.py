"""Golden cases by family: a module's `COMPUTE` gives the results of its operations through their public functions."""

from types import ModuleType

from repkernels.verify.cases import (
    arithmetic,
    convolutions,
    indexing,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
    sorting,
    unary,
)

FAMILIES: tuple[ModuleType, ...] = (
    arithmetic,
    convolutions,
    indexing,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
    sorting,
    unary,
)
