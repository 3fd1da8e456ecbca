"""Golden cases by family: each module has `cases()`, which lists them, and `COMPUTE`, the results of each operation."""

from types import ModuleType

from reference.cases import (
    arithmetic,
    attention,
    convolutions,
    decoder,
    indexing,
    layers,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
    resampling,
    sampling,
    sorting,
    unary,
)

FAMILIES: tuple[ModuleType, ...] = (
    arithmetic,
    attention,
    convolutions,
    decoder,
    indexing,
    layers,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
    resampling,
    sampling,
    sorting,
    unary,
)
