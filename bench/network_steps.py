"""A training step of a network, timed: forward, loss, backward and a step of SGD, eager and as one CUDA graph."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import repkernels
from repkernels.contract import as_pair

from .networks import IN_MODE, NETWORKS

TORCH, DETERMINISTIC = "torch", "torch deterministic"
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
WARM = 3  # steps before the clock starts: the first makes the momenta, cuDNN's choice of algorithms is made
CLASSES = 1000


class Entry(NamedTuple):
    """One way to train one network. way: TORCH, DETERMINISTIC, or a contract of this library, `name` or
    `forward/gradient`. layout: a key of LAYOUTS."""

    network: str
    way: str
    layout: str


class Sizes(NamedTuple):
    """Images of a batch, pixels of a side, timed steps."""

    batch: int
    size: int
    steps: int


def pair(way: str) -> Any:
    """The contract that a way names. Raises ValueError for an unknown one."""
    forward, slash, gradient = way.partition("/")
    return as_pair((forward, gradient) if slash else way)


def rows(entry: Entry, sizes: Sizes, device: torch.device, modes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A row for each of the modes "eager" and "graph"; with no modes one step is made, and there is one row without a
    time. What fails is a row with `error`, memory that does not suffice included."""
    prepare(entry.way)
    step = None
    for mode in modes or ("",):
        row: dict[str, Any] = {**entry._asdict(), **sizes._asdict(), **({"mode": mode} if mode else {})}
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            begin = time.perf_counter()
            if step is None:
                step = training_step(entry, sizes, device)
                for _ in range(WARM if mode else 1):
                    step()
                _wait(device)
            row["first_seconds"] = round(time.perf_counter() - begin, 2)
            if mode:
                row |= _timed(_captured(step, device) if mode == "graph" else step, sizes.steps, device)
            if device.type == "cuda":
                row["memory_gib"] = round(torch.cuda.max_memory_reserved(device) / 2**30, 2)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
        yield row
    del step
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def prepare(way: str) -> None:
    """torch's settings for a way: no TF32 for any, cuDNN chooses by measuring where nothing is to be deterministic."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = way != DETERMINISTIC
    torch.backends.cudnn.deterministic = way == DETERMINISTIC
    if way == DETERMINISTIC:
        # Read when cuBLAS starts, so a process does not mix this way with others.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(way == DETERMINISTIC)


def training_step(entry: Entry, sizes: Sizes, device: torch.device) -> Callable[[], Tensor]:
    """A function that makes one step on the same batch and returns the loss."""
    torch.manual_seed(0)
    repkernels.manual_seed(0)
    form = LAYOUTS[entry.layout]
    with device:
        model = NETWORKS[entry.network](CLASSES, sizes.size)
    library: Any = torch.optim
    loss_of = torch.nn.CrossEntropyLoss()
    mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    if entry.way not in (TORCH, DETERMINISTIC):
        mode = repkernels.reproducible if entry.network in IN_MODE else mode
        model = repkernels.convert(model, pair(entry.way))
        library, loss_of = repkernels.optim, repkernels.nn.CrossEntropyLoss()
    model = model.to(memory_format=form)  # type: ignore[call-overload]
    optimizer = library.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes.batch, 3, sizes.size, sizes.size, generator=generator).to(device, memory_format=form)
    target = torch.randint(CLASSES, (sizes.batch,), generator=generator).to(device)

    def step() -> Tensor:
        optimizer.zero_grad()
        with mode():
            loss = loss_of(model(x), target)
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(step: Callable[[], Tensor], device: torch.device) -> Callable[[], Any]:
    # torch wants some steps on the stream of the capture first.
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    _wait(device)
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except Exception:
        torch.cuda.synchronize(device)
        raise

    def replay(held: Callable[[], Tensor] = step) -> None:
        """`held`: the graph reads what the step holds where it lies."""
        graph.replay()

    replay()
    _wait(device)
    return replay


def _timed(step: Callable[[], Any], count: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds from the end of one step to the end of the next: the median and the extremes."""
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        events[-1].synchronize()
        times = [a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)]
    else:
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            step()
            times.append((time.perf_counter() - begin) * 1e3)
    return {"milliseconds": _rounded(median(times)), "least": _rounded(min(times)), "most": _rounded(max(times))}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rounded(x: float) -> float:
    return float(f"{x:.4g}")
