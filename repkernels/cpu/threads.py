"""Work spread over torch's number of CPU threads, and the buffers each thread keeps.

Numba's own parallel loops are not used: its portable threading layer forbids calls from two Python threads at once.
"""

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

_pool: ThreadPoolExecutor | None = None
_starting = threading.Lock()


class _Own(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[tuple[str, Any], np.ndarray] = {}


_own = _Own()


def share(task: Callable[[int], None], count: int, alone: bool = False) -> None:
    """Runs task(0) .. task(count - 1), each once, on the calling thread and, unless `alone`, on up to
    torch.get_num_threads() - 1 others.

    Tasks must not depend on each other's order; the first exception of one is raised here.
    """
    helpers = 0 if alone else min(torch.get_num_threads(), count) - 1
    if helpers <= 0:
        for index in range(count):
            task(index)
        return
    indices = itertools.count()

    def work() -> None:
        while (index := next(indices)) < count:
            task(index)

    try:
        others = [_executor().submit(work) for _ in range(helpers)]
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        others = []
    try:
        work()
    finally:
        # A helper that has not started by now has nothing left to do; waiting for it could wait for other callers.
        running = [other for other in others if not other.cancel()]
        for other in running:
            other.exception()
    for other in running:
        other.result()


def buffer(name: str, size: int, dtype: Any) -> np.ndarray:
    """An array of at least `size` elements that belongs to the present thread; its contents are whatever was left."""
    kept = _own.arrays.get((name, dtype))
    if kept is None or len(kept) < size:
        kept = _own.arrays[name, dtype] = np.empty(size, dtype)
    return kept


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _starting:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(os.cpu_count() or 1, torch.get_num_threads()), "repkernels")
        return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _starting
    _pool, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
