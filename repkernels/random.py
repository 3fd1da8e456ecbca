"""Random numbers as a function of (seed, stream, index) alone (SPEC.md, "Random numbers"): Philox4x32-10.

Every draw takes the next stream of the process-wide generator, so it depends on the seed and on how many draws came
before it: not on the size of those, the device or the number of threads. A shorter draw is a prefix of a longer one.
"""

import operator
import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from repkernels.subnormals import subnormals_kept

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_BLOCKS = 1 << 18  # counters computed at a time, so that the temporaries stay within a cache

_lock = threading.Lock()
_state = {"seed": 0, "stream": 0}


def manual_seed(seed: int) -> None:
    """Starts the generator anew: draws follow from `seed` (0 <= seed < 2^64) and from their number since this call."""
    seed = operator.index(seed)
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed: expected 0 <= seed < 2**64, got {seed}")
    set_state({"seed": seed, "stream": 0})


def get_state() -> dict[str, int]:
    """The generator's state, {"seed", "stream"}: what a resumed run gives to `set_state`."""
    with _lock:
        return dict(_state)


def set_state(state: dict[str, int]) -> None:
    """Restores what `get_state` returned. Raises ValueError for anything else."""
    try:
        numbers = {key: operator.index(value) for key, value in state.items()}
    except TypeError:
        numbers = {}
    if set(numbers) != {"seed", "stream"} or not all(0 <= n < 1 << 64 for n in numbers.values()):
        raise ValueError(f"state: expected {{'seed': int, 'stream': int}} below 2**64, got {state!r}")
    with _lock:
        _state.update(numbers)


def next_stream() -> tuple[int, int]:
    """(seed, stream) of the next draw; the draw after it has another stream."""
    with _lock:
        seed, stream = _state["seed"], _state["stream"]
        _state["stream"] = (stream + 1) % (1 << 64)
        return seed, stream


def words(seed: int, stream: int, count: int) -> np.ndarray:
    """The first `count` 32-bit words of a stream: element i is word i mod 4 of the block with counter i // 4.

    Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), key = seed (low, high),
    counter = (block low, high, stream low, high).
    """
    out = np.empty((-(-count // 4), 4), np.uint32)
    for start in range(0, len(out), _BLOCKS):
        part = out[start : start + _BLOCKS]
        block = np.arange(start, start + len(part), dtype=np.uint64)
        for column, word in enumerate(_philox(block, seed, stream)):
            part[:, column] = word
    return out.reshape(-1)[:count]


def _philox(block: np.ndarray, seed: int, stream: int) -> tuple[np.ndarray, ...]:
    x0, x1 = block & _LOW, block >> _SHIFT
    x2, x3 = np.full_like(block, stream & 0xFFFFFFFF), np.full_like(block, stream >> 32)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (p1 >> _SHIFT) ^ x1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _SHIFT) ^ x3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return x0, x1, x2, x3


def uniform(
    shape: int | Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """A tensor drawn uniformly from [low, high), from the next stream; drawn on the CPU, then moved.

    Element i (row-major) is RN(RN(u * RN32(high - low)) + RN32(low)) in binary32, u = (word i >> 8) * 2^-24, then
    rounded to `dtype` (fp16, bf16, fp32; fp64 holds the binary32 value). With low = 0 and high = 1 fp32 is never 1.
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise NotImplementedError(f"dtype: {dtype} is not supported; use a floating-point dtype")
    size = torch.Size((shape,) if isinstance(shape, int) else shape)
    if any(n < 0 for n in size):
        raise RuntimeError(f"shape: expected sizes >= 0, got {tuple(size)}")
    u = (words(*next_stream(), size.numel()) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    with subnormals_kept():
        values = u * np.float32(high - low) + np.float32(low)
        if dtype == torch.float64:  # by NumPy, on this thread
            values = values.astype(np.float64)
    return torch.from_numpy(values).reshape(size).to(dtype).to(device)


def permutation(n: int, *, device: torch.device | str | None = None) -> Tensor:
    """A permutation of 0 .. n-1, int64 (n,), from the next stream.

    Element i gets the 64-bit key (word 2i) << 32 | (word 2i+1); the result sorts the keys, ascending and stable.
    """
    n = operator.index(n)
    if n < 0:
        raise ValueError(f"n: expected n >= 0, got {n}")
    w = words(*next_stream(), 2 * n).astype(np.uint64)
    order = np.argsort((w[0::2] << _SHIFT) | w[1::2], kind="stable")
    return torch.from_numpy(order.astype(np.int64)).to(device=device)
