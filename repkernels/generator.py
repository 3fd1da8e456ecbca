"""Where a draw's stream comes from: generators, and the one that draws use which name none."""

import contextlib
import operator
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LIMIT = 1 << 64


class Generator:
    """A seed and the number of the next stream: each draw takes the next stream, whatever its size.

    seed: 0 <= seed < 2^64. Two generators with different seeds have nothing in common, and one with the same seed
    repeats the other. Threads may share a generator: no two draws get the same stream. It can be copied and pickled.
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._numbers = np.zeros(2, np.uint64)
        # Compiled code takes streams from the same memory, and writes it whatever mode it runs in.
        with torch.inference_mode(False):
            self.memory = torch.from_numpy(self._numbers.view(np.int64))
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> "Generator":
        """Starts anew with `seed` and stream 0; returns the generator. Raises ValueError for a seed out of range,
        TypeError for what is no int."""
        try:
            seed = operator.index(seed)
        except TypeError:
            raise TypeError(f"seed: expected an int, got {type(seed).__name__}") from None
        if not 0 <= seed < _LIMIT:
            raise ValueError(f"seed: expected 0 <= seed < 2**64, got {seed}")
        self.set_state({"seed": seed, "stream": 0})
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self.get_state()["seed"]

    def get_state(self) -> dict[str, int]:
        """{"seed", "stream"}: what a resumed run gives to `set_state`."""
        with self._lock:
            seed, stream = self._numbers.tolist()
        return {"seed": seed, "stream": stream}

    def set_state(self, state: dict[str, int]) -> None:
        """Restores what `get_state` returned. Raises ValueError for anything else."""
        try:
            numbers = {key: operator.index(value) for key, value in state.items()}
        except (AttributeError, TypeError):
            numbers = {}
        if set(numbers) != {"seed", "stream"} or not all(0 <= n < _LIMIT for n in numbers.values()):
            raise ValueError(f"state: expected {{'seed': int, 'stream': int}} below 2**64, got {state!r}")
        with self._lock:
            self._numbers[:] = numbers["seed"], numbers["stream"]

    def next_stream(self) -> tuple[int, int]:
        """(seed, stream) of the next draw; the draw after it has another stream."""
        with self._lock:
            seed, stream = self._numbers.tolist()
            self._numbers[1] = (stream + 1) % _LIMIT
        return seed, stream

    def __getstate__(self) -> dict[str, int]:
        return self.get_state()

    def __setstate__(self, state: dict[str, int]) -> None:
        Generator.__init__(self)
        self.set_state(state)

    def __repr__(self) -> str:
        return "Generator(seed={seed}, stream={stream})".format(**self.get_state())


PROCESS = Generator()
_replaying: ContextVar[Generator | None] = ContextVar("repkernels_generator", default=None)


def default() -> Generator:
    """The process's generator; that of the first run, inside the second run of a checkpoint."""
    return _replaying.get() or PROCESS


def chosen(generator: Generator | None) -> Generator:
    """`generator`, or the default one. Raises TypeError for what is no `repkernels.random.Generator`."""
    if generator is None:
        return default()
    if not isinstance(generator, Generator):
        raise TypeError(f"generator: expected a repkernels.random.Generator, got {type(generator).__name__}")
    return generator


@contextlib.contextmanager
def replay(state: dict[str, int]) -> Iterator[None]:
    """Draws in the body, of this thread or task, that name no generator repeat those that followed `state`."""
    again = Generator()
    again.set_state(state)
    token = _replaying.set(again)
    try:
        yield
    finally:
        _replaying.reset(token)


def key(seed: int, stream: int) -> Tensor:
    """A draw's seed and stream as a tensor: int64 (2,) on the CPU, modulo 2^64."""
    return torch.from_numpy(np.array([seed, stream], np.uint64).view(np.int64))


def numbers(key: Tensor) -> tuple[int, int]:
    """(seed, stream) of a key."""
    seed, stream = key.tolist()
    return seed % _LIMIT, stream % _LIMIT


def _take(state: Tensor, x: Tensor) -> Tensor:
    generator = _replaying.get()
    if generator is not None:
        return key(*generator.next_stream())
    refuse_in_backward()
    with PROCESS._lock:
        taken = state.clone()
        state[1] += 1
    return taken


def refuse_in_backward() -> None:
    """Raises where a random mask would be drawn while gradients are computed: a checkpoint's second run."""
    if _replaying.get() is None and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "dropout: a checkpoint runs its function again in backward, and would draw another mask; call it with "
            "use_reentrant=False and context_fn=repkernels.checkpoint_contexts, around compiled code rather than in it"
        )


# The generator's memory is an argument, so that compilers keep the order of draws and drop none.
_op = torch.library.custom_op("repkernels::take_stream", _take, mutates_args=("state",))


@_op.register_fake
def _(state: Tensor, x: Tensor) -> Tensor:
    return torch.empty((2,), dtype=torch.int64)


@_op.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], state: Tensor, x: Tensor) -> Any:
    raise NotImplementedError("random numbers in a compiled vmap are not supported; do not compile the vmap")


def traced(x: Tensor | None = None) -> Tensor:
    """The key of the next draw where a compiler or tracer listens: it takes the stream each time the code runs."""
    memory = PROCESS.memory
    return torch.ops.repkernels.take_stream(memory, memory if x is None else x.detach())
