"""Each work in a process of its own: a fault on the GPU ends its process's context, and costs that work alone."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from . import benchmarks, report  # noqa: F401  (benchmarks registers them)
from .measure import Failed, measure
from .registry import REGISTRY


def rows(benchmark: str, device: torch.device, quick: bool, index: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of work number `index` of a benchmark. On a GPU from a new process, forked where no CUDA has begun."""
    if device.type == "cpu":
        return _rows(benchmark, str(device), quick, index, rounds)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=server) as executor:
        try:
            return executor.submit(_rows, benchmark, str(device), quick, index, rounds).result()
        except BrokenProcessPool:
            work = list(REGISTRY[benchmark](device, quick))[index]
            return report.as_rows(work, {v.label: Failed("the process ended") for v in work.variants})


def _rows(benchmark: str, device: str, quick: bool, index: int, rounds: int) -> list[dict[str, Any]]:
    where = torch.device(device)
    work = list(REGISTRY[benchmark](where, quick))[index]
    return report.as_rows(work, measure(work, where, rounds))
