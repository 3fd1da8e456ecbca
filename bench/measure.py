"""Medians of times, every way of doing a work taking turns, so that clocks and heat favour none.

On a GPU a run is captured in a CUDA graph, over all copies of the operands, and replays are timed with events: what is
measured is the GPU's work, not Python's. What can't be captured is timed as it is, and says so.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch

from .registry import Run, Work

Timed = Callable[[], Callable[[], float]]
"""Starts one timed repetition; the call of what it returns waits for it and gives seconds a run."""

ROUNDS = 15
SPAN = 0.004  # seconds that one repetition lasts at least, on a GPU
BUDGET = 1.5  # seconds for all repetitions of a variant, at most


class Time(NamedTuple):
    """Seconds a run: the median and the extremes of the repetitions; and whether runs came from a CUDA graph."""

    median: float
    least: float
    most: float
    repetitions: int
    graph: bool


class Failed(NamedTuple):
    """A variant that could not be measured."""

    error: str


def measure(work: Work, device: torch.device, rounds: int = ROUNDS) -> dict[str, Time | Failed]:
    """Times every variant of `work`; one that raises is reported and costs the others nothing."""
    results: dict[str, Time | Failed] = {}
    timed: dict[str, tuple[Timed, bool]] = {}
    operands = work.operands()
    for variant in work.variants:
        try:
            timed[variant.label] = _timed(variant.prepare(operands), work.copies, device)
        except Exception as error:
            results[variant.label] = Failed(_message(error))
            _recover(device)
    seconds: dict[str, list[float]] = {label: [] for label in timed}
    for _ in range(rounds):
        for label in list(timed):
            if sum(seconds[label]) < BUDGET or len(seconds[label]) < 3:
                try:
                    seconds[label].append(timed[label][0]()())
                except Exception as error:
                    results[label] = Failed(_message(error))
                    del timed[label]
    for label, (_, graph) in timed.items():
        taken = seconds[label]
        results[label] = Time(median(taken), min(taken), max(taken), len(taken), graph)
    return {variant.label: results[variant.label] for variant in work.variants}


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


def _recover(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def _timed(run: Run, copies: int, device: torch.device) -> tuple[Timed, bool]:
    if device.type != "cuda":
        return _on_cpu(run, copies), False
    for i in range(copies):
        run(i)
    torch.cuda.synchronize(device)
    replay, graph = _captured(run, copies)
    return _on_gpu(replay, copies), graph


def _captured(run: Run, copies: int) -> tuple[Callable[[], Any], bool]:
    def all_copies() -> None:
        for i in range(copies):
            run(i)

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            all_copies()
    except Exception:
        torch.cuda.synchronize()
        return all_copies, False

    def replay(held: Run = run) -> None:
        """`held`: the graph reads what the run holds where it lies, which must not be freed before the last replay."""
        graph.replay()

    return replay, True


def _on_gpu(replay: Callable[[], Any], copies: int) -> Timed:
    def events(count: int) -> Callable[[], float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            replay()
        end.record()

        def seconds() -> float:
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / count

        return seconds

    events(1)()
    count = max(1, round(SPAN / max(events(1)(), 1e-6)))
    return lambda: _scaled(events(count), 1 / copies)


def _on_cpu(run: Run, copies: int) -> Timed:
    run(0)
    turn = iter(range(1, 1 << 62))

    def once() -> Callable[[], float]:
        begin = time.perf_counter()
        run(next(turn) % copies)
        taken = time.perf_counter() - begin
        return lambda: taken

    return once


def _scaled(seconds: Callable[[], float], factor: float) -> Callable[[], float]:
    return lambda: seconds() * factor
