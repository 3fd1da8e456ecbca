"""Random numbers as a function of (seed, stream, index) alone (SPEC.md, "Random numbers"): Philox4x32-10.

Every draw takes the next stream of a generator, the process's own unless `generator=` names one, so it depends on the
seed and on how many draws came before it: not on the size of those, the device or the number of threads. Numbers are
drawn on the device where they are wanted, and a shorter draw is a prefix of a longer one.

A forked process starts with a copy of its parent's state, as torch's does.
"""

import contextlib
import numbers
import operator
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from repkernels import generator as _streams
from repkernels.generator import Generator
from repkernels.ops import checks
from repkernels.ops import random as draws
from repkernels.philox import words
from repkernels.sampler import RandomSampler

__all__ = [
    "Generator",
    "RandomSampler",
    "bernoulli",
    "fork_rng",
    "get_state",
    "manual_seed",
    "multinomial",
    "next_stream",
    "normal",
    "permutation",
    "randint",
    "set_state",
    "uniform",
    "words",
]

_LARGEST = torch.finfo(torch.float32).max
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
Size = int | Sequence[int]
Device = torch.device | str | None


def manual_seed(seed: int) -> Generator:
    """Starts the process's generator anew and returns it: draws follow from `seed` (0 <= seed < 2^64) and from their
    number since this call."""
    return _streams.PROCESS.manual_seed(seed)


def get_state() -> dict[str, int]:
    """The state of the process's generator, {"seed", "stream"}: what a resumed run gives to `set_state`."""
    return _streams.PROCESS.get_state()


def set_state(state: dict[str, int]) -> None:
    """Restores what `get_state` returned. Raises ValueError for anything else."""
    _streams.PROCESS.set_state(state)


@contextlib.contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """After the body the process's generator has the state it had before, as with torch.random.fork_rng."""
    state = get_state()
    try:
        yield
    finally:
        if enabled:
            set_state(state)


def next_stream(generator: Generator | None = None) -> tuple[int, int]:
    """(seed, stream) of the next draw; the draw after it has another stream."""
    return _streams.chosen(generator).next_stream()


def uniform(
    shape: Size,
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: torch.dtype = torch.float32,
    device: Device = None,
    generator: Generator | None = None,
) -> Tensor:
    """A tensor drawn uniformly from [low, high), from the next stream.

    Element i (row-major) is RN(RN(u * RN32(high - low)) + RN32(low)) in binary32, u = (word i >> 8) * 2^-24, then
    rounded to `dtype` (fp16, bf16, fp32; fp64 holds the binary32 value). With low = 0 and high = 1 fp32 is never 1.
    Raises NotImplementedError for other dtypes and devices, RuntimeError for negative sizes, low > high and bounds
    whose difference is beyond fp32.
    """
    if not 0 <= high - low <= _LARGEST:
        raise RuntimeError(f"low and high: expected 0 <= high - low <= {_LARGEST:.8g}, got {low} and {high}")
    return _floats("uniform", shape, float(low), float(high), dtype, device, generator)


def normal(
    shape: Size,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: torch.dtype = torch.float32,
    device: Device = None,
    generator: Generator | None = None,
) -> Tensor:
    """A tensor drawn from the normal distribution N(mean, std^2), from the next stream, by Box and Muller.

    Elements 2j and 2j + 1 take words w, w' of these numbers: r = sqrt_rn(RN(-2 ln_f32(((w >> 8) + 1) * 2^-24))),
    t = (w' >> 8) * 2^-23, z = RN(r * cospi(t)) and RN(r * sinpi(t)), then RN(RN(z * RN32(std)) + RN32(mean)) in
    binary32, rounded to `dtype` (fp64 holds the binary32 value). |z| <= 5.77.
    Raises RuntimeError for std < 0 and negative sizes, NotImplementedError for other dtypes and devices.
    """
    if not std >= 0:
        raise RuntimeError(f"std: expected a value >= 0, got {std}")
    return _floats("normal", shape, float(mean), float(std), dtype, device, generator)


def _floats(
    kind: str, shape: Size, a: float, b: float, dtype: torch.dtype, device: Device, generator: Generator | None
) -> Tensor:
    if dtype not in checks.FLOATS:
        raise NotImplementedError(f"dtype: {dtype} is not supported; use a floating-point dtype")
    size, place = _size(shape), _device(device)
    if generator is None and (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()):
        return draws.traced_draw(kind, size, a, b, dtype, place)
    return draws.draw(kind, next_stream(generator), size, a, b, dtype, place)


@torch._disable_dynamo
def bernoulli(
    p: Tensor | float,
    shape: Size | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: Device = None,
    generator: Generator | None = None,
) -> Tensor:
    """Ones with probability p and zeros, from the next stream: element i is 1 iff word i < floor(p_i * 2^32).

    p: a floating tensor of probabilities, which gives the result its shape, dtype and device; or a number, with
    `shape`, for fp32 on `device`. dtype: of the result, any. Raises RuntimeError for p outside of [0, 1] (a
    device-side assertion for a tensor on a GPU), TypeError for a number without a shape or a tensor with one.
    """
    if isinstance(p, Tensor):
        checks.operand("p", p)
        if shape is not None or device is not None:
            raise TypeError("shape and device: a tensor p has its own; pass neither")
        dtype = p.dtype if dtype is None else dtype
        _check_probabilities(p)
        # Exact, and so is the whole part of a number that is not negative.
        thresholds, size = (p.detach().resolve_neg().double() * 2.0**32).to(torch.int64), p.shape
    else:
        if not isinstance(p, numbers.Real):
            raise TypeError(f"p: expected a number or a Tensor, got {type(p).__name__}; the shape comes after it")
        if shape is None:
            raise TypeError("shape: needed where p is a number")
        if not 0 <= p <= 1:
            raise RuntimeError(f"p: expected 0 <= p <= 1, got {p}")
        dtype = torch.float32 if dtype is None else dtype
        size = _size(shape)
        thresholds = torch.tensor(threshold(p), dtype=torch.int64, device=_device(device))
    return draws.below(next_stream(generator), size, thresholds).to(dtype)


def threshold(p: float) -> int:
    """floor(p * 2^32): a word is below it with probability p."""
    return int(p * 2.0**32)


def _check_probabilities(p: Tensor) -> None:
    inside = ((p >= 0) & (p <= 1)).all()
    if p.is_cpu:
        if not inside:
            raise RuntimeError("p: expected 0 <= p <= 1 everywhere")
    elif not p.is_meta:
        torch._assert_async(inside, "p: expected 0 <= p <= 1 everywhere")


@torch._disable_dynamo
def randint(
    low: int,
    high: int | Size | None = None,
    shape: Size | None = None,
    *,
    dtype: torch.dtype = torch.int64,
    device: Device = None,
    generator: Generator | None = None,
) -> Tensor:
    """Integers from [low, high), from the next stream: randint(low, high, shape) or randint(high, shape).

    Element i has the 64-bit word W = word 2i * 2^32 + word 2i + 1 and is low + floor(W * (high - low) / 2^64): no
    value is more likely than another by more than 2^-64. dtype: an integer one that holds low and high - 1.
    Raises RuntimeError for low >= high, bounds outside of dtype and negative sizes; NotImplementedError for others.
    """
    if shape is None:
        if high is None:
            raise TypeError("shape: randint needs (high, shape) or (low, high, shape)")
        low, high, shape = 0, low, high
    low, high = operator.index(low), operator.index(high)  # type: ignore[arg-type]
    if dtype not in _INTEGERS:
        raise NotImplementedError(f"dtype: {dtype} is not supported; use an integer dtype")
    if low >= high:
        raise RuntimeError(f"low and high: expected low < high, got {low} and {high}")
    info = torch.iinfo(dtype)
    if low < info.min or high - 1 > info.max:
        raise RuntimeError(f"low and high: {dtype} does not hold all of [{low}, {high})")
    size, place = _size(shape), _device(device)
    key = next_stream(generator)
    if high - low == 1 << 64:
        return draws.keys(key, size, place)
    return draws.integers(key, size, draws.span(high - low, place), low).to(dtype)


@torch._disable_dynamo
def permutation(n: int, *, device: Device = None, generator: Generator | None = None) -> Tensor:
    """A permutation of 0 .. n-1, int64 (n,), from the next stream.

    Element i gets the 64-bit key (word 2i) << 32 | (word 2i+1); the result sorts the keys, ascending and stable.
    """
    n = operator.index(n)
    if n < 0:
        raise ValueError(f"n: expected n >= 0, got {n}")
    return draws.keys(next_stream(generator), (n,), _device(device)).sort(stable=True).indices


@torch._disable_dynamo
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn in proportion to the weights of each row, from the next stream, as torch.multinomial.

    input: (C,) or (R, C) floating weights >= 0, finite, each row with one above 0 at least, not necessarily of sum 1;
    rounded to fp32.
    Result: int64, (num_samples,) or (R, num_samples). Weights below 2^-(62 - ceil(log2 C)) of the row's largest are
    never drawn with replacement. Rules: SPEC.md, "Random numbers".

    Without replacement indices come in the order of an exponential race, the first as likely as its weight.
    Raises RuntimeError for negative, infinite or NaN weights, rows without weight, and more samples than weights above
    0 without replacement (on a GPU device-side assertions), and for other shapes.
    """
    checks.operand("input", input)
    if input.ndim not in (1, 2):
        raise RuntimeError(f"input: expected 1 or 2 dimensions, got shape {tuple(input.shape)}")
    n, classes = operator.index(num_samples), input.shape[-1]
    if n <= 0:
        raise RuntimeError(f"num_samples: expected a number above 0, got {n}")
    if not replacement and n > classes:
        raise RuntimeError(f"num_samples: {n} of {classes} can't be drawn without replacement")
    if classes == 0:
        raise RuntimeError(f"input: no weights in shape {tuple(input.shape)}")
    weights = input.detach().resolve_neg().reshape(-1, classes).float()
    least = 1 if replacement else n
    right = (weights >= 0).all() & weights.isfinite().all() & ((weights > 0).sum(1) >= least).all()
    message = f"input: expected finite weights >= 0, of which {least} or more in each row are above 0"
    if input.is_cpu:
        if not right:
            raise RuntimeError(message)
    elif not input.is_meta:
        torch._assert_async(right, message)
    drawn = (_with_replacement if replacement else _without)(weights, n, next_stream(generator))
    return drawn.reshape(*input.shape[:-1], n)


def _with_replacement(weights: Tensor, n: int, key: tuple[int, int]) -> Tensor:
    rows, classes = weights.shape
    # In integers, which add up in any order: every step is exact, but one that rounds down.
    wide, room = weights.double(), 62 - (classes - 1).bit_length()
    exponent = room - torch.frexp(wide.amax(1, keepdim=True)).exponent.long()
    shares = (wide * ((exponent + 1023) << 52).view(torch.float64)).to(torch.int64)
    sums = shares.cumsum(1)
    place = draws.integers(key, (rows, n), sums[:, -1], 0)
    return torch.searchsorted(sums, place, right=True)


def _without(weights: Tensor, n: int, key: tuple[int, int]) -> Tensor:
    times = draws.race(key, weights)
    return times.sort(stable=True, dim=1).indices[:, :n]


def _size(shape: Size) -> torch.Size:
    size = torch.Size((shape,) if isinstance(shape, (int, np.integer)) else shape)
    if any(n < 0 for n in size):
        raise RuntimeError(f"shape: expected sizes >= 0, got {tuple(size)}")
    return size


def _device(device: Device) -> torch.device:
    place = draws.device_of(device)
    if place.type not in ("cpu", "cuda", "meta"):
        raise NotImplementedError(f"device: {place} is not supported; use the CPU or a CUDA or ROCm GPU")
    return place
