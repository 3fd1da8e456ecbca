"""The library's function against the measured one: over all inputs on a GPU, over samples on a CPU."""

import time
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from reference import unary

from . import hard_cases
from .library import results
from .measure import chunks, double_doubles, measure

# Inputs per launch: a GPU holds the values of several functions at once, the interpreter's arrays should stay in cache.
CHUNK = {"cuda": 1 << 27, "cpu": 1 << 17}
LISTED = 64
MOST_UNDECIDED = 10000
# An input is hard if f(x) is this near, in ulp, to where rounding changes. Far below 2^-100, x / 2 may be half-way.
HARD = 2.0**-27
LEAST_HARD = 0x0D800000  # 2^-100


def prove(name: str, device: torch.device, inputs: int = 1 << 32, seed: int = 0) -> dict[str, Any]:
    """The record of one function: all 2^32 inputs, or the known hard cases and a sample."""
    start = time.perf_counter()
    found = Findings(name)
    if inputs >= 1 << 32:
        for bits in chunks(0, 1 << 32, CHUNK[device.type]):
            found.add(bits, *measure(name, bits, device), results(name, bits, device))
    else:
        hard = np.array([int(x, 16) for x in hard_cases.known().get(name, ())], np.int64)
        for listed in torch.from_numpy(np.concatenate([hard, sample(inputs, seed)])).split(CHUNK[device.type]):
            found.add(listed, *measure(name, listed, device), results(name, listed, device))
    error = measuring_error(name, device)
    holds = not found.wrong_count and error["part_of_its_bound"] < 0.5
    seconds = round(time.perf_counter() - start, 1)
    return {**found.record(), **error, "seconds": seconds, "holds": holds}


def sample(count: int, seed: int) -> np.ndarray:
    """int64 bit patterns: a quarter each of any bits, sizes up to 128, sizes below 1 in every binade, and around 1;
    with zeros, ones, infinities, NaN, the ends of the binades, and their neighbours."""
    rng = np.random.default_rng(seed)
    part = count // 4
    sign = rng.choice([-1.0, 1.0], part)
    drawn = [
        sign * rng.uniform(0, 128, part),
        sign * rng.uniform(1, 2, part) * 2.0 ** rng.integers(-30, 0, part),
        1 + sign * rng.uniform(1, 2, part) * 2.0 ** rng.integers(-24, -1, part),
    ]
    numbers = np.concatenate(drawn).astype(np.float32).view(np.uint32).astype(np.int64)
    ends = (np.arange(0, 512)[:, None] << 23) + np.arange(-2, 3)
    return np.concatenate([ends.reshape(-1) & 0xFFFFFFFF, rng.integers(0, 1 << 32, part), numbers])


class Findings:
    """What the comparison of one function has met so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs = self.settled = 0
        self.wrong: list[int] = []
        self.wrong_count = 0
        self.nearest: tuple[float, int] = (1.0, 0)
        self.hard: list[tuple[float, int]] = []

    def add(self, bits: range | Tensor, right: Tensor, distance: Tensor, found: Tensor) -> None:
        """right, found: int32 bits of RN32(f(x)) and of the library's result; distance: 0 where right is not sure."""

        def inputs(where: Tensor) -> Tensor:
            at = where.nonzero()[:, 0]
            return bits[at.to(bits.device)].to(at.device) if isinstance(bits, Tensor) else at + bits.start

        self.inputs += len(bits)
        undecided = distance == 0
        if (count := int(undecided.sum())) > MOST_UNDECIDED:
            raise RuntimeError(f"{self.name}: {count} inputs of {len(bits)} are too near a midpoint to be decided")
        for x, y in zip(inputs(undecided).tolist(), found[undecided].tolist(), strict=True):
            self.settled += 1
            if unary.value(self.name, x) != y & 0xFFFFFFFF:
                self._wrong([x], 1)
        different = inputs((found != right) & ~undecided)
        self._wrong(different[: LISTED - len(self.wrong)].tolist(), len(different))
        distance = torch.where(undecided, 1.0, distance)
        at = int(distance.argmin())
        self.nearest = min(self.nearest, (float(distance[at]), int(bits[at])))
        near = distance < HARD
        places = inputs(near)
        large = (places & 0x7FFFFFFF) >= LEAST_HARD
        hard = zip(distance[near][large].tolist(), places[large].tolist(), strict=True)
        self.hard = sorted({*self.hard, *hard})[:LISTED]

    def _wrong(self, listed: list[int], count: int) -> None:
        self.wrong += listed
        self.wrong_count += count

    def record(self) -> dict[str, Any]:
        """Plain values for the JSON file."""
        return {
            "inputs": self.inputs,
            "wrong": self.wrong_count,
            "wrong_at": [f"{x:08x}" for x in self.wrong],
            "settled_by_mpmath": self.settled,
            "nearest_midpoint_ulp": self.nearest[0],
            "nearest_midpoint_at": f"{self.nearest[1]:08x}",
            "hard_cases": [f"{x:08x}" for _, x in self.hard],
        }


def measuring_error(name: str, device: torch.device, count: int = 2000, seed: int = 1) -> dict[str, float]:
    """The double-double values against mpmath on a sample: largest relative error, and largest part of its bound."""
    function = unary.FUNCTIONS[name]
    patterns = np.random.default_rng(seed).permutation(sample(count, seed))[:count]
    worst, part = mpmath.mpf(0), mpmath.mpf(0)
    values = (v.tolist() for v in double_doubles(name, torch.from_numpy(patterns).to(device)))
    for bits, high, low, doubt in zip(patterns.tolist(), *values, strict=True):
        x = unary.number(bits)
        # Beyond fp32's range the measured value only has to round as f(x) does.
        if x == 0 or not np.isfinite(x) or function.outside(x) or not 2.0**-151 < abs(high) < 2.0**130:
            continue
        with mpmath.workprec(400):
            exact = function.value(mpmath.mpf(x))
            error = abs(mpmath.mpf(high) + mpmath.mpf(low) - exact)
            worst = max(worst, error / abs(exact))
            # What is said to be exact may differ by mpmath's own error.
            part = max(part, error / (doubt or abs(exact) * 2.0**-380))
    return {"relative_error_of_the_measure": float(worst), "part_of_its_bound": float(part)}
