"""Golden cases by family: a module's `COMPUTE` gives the results of its operations through their public functions."""

from types import ModuleType

from repkernels.verify.cases import (
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
