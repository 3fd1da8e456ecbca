"""What can be measured: benchmarks by name, each a list of works, each work a few ways to do it side by side."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[int], Any]
"""Does the work once, on copy i of its operands."""


@dataclass(frozen=True)
class Variant:
    """One way to do a work. `prepare` is given the operands and returns what is timed."""

    label: str
    prepare: Callable[[Any], Run]


@dataclass(frozen=True)
class Work:
    """One thing to do, measured in every way in one run. Ratios are taken to `baseline`, the label of a variant.

    copies: how many sets of operands the runs go round, so that caches don't hold what a real use would read anew.
    operations, traffic: of one run, in operations and bytes.
    """

    name: str
    group: str
    operands: Callable[[], Any]
    variants: list[Variant]
    baseline: str
    operations: int
    traffic: int
    copies: int = 1
    sizes: dict[str, int] = field(default_factory=dict)


Benchmark = Callable[[torch.device, bool], Iterable[Work]]
"""The works for a device; few of them where the flag `quick` is set."""

REGISTRY: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Registers a function that lists works."""

    def register(function: Benchmark) -> Benchmark:
        REGISTRY[name] = function
        return function

    return register
