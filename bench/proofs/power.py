"""pow(x, y) on a sample against mpmath: any bits, exact powers, half-way cases, and the pairs nearest to a midpoint of
millions of drawn ones."""

from typing import Any

import numpy as np
import torch

from reference import power

from .library import pairs

DRAWN = 1 << 21
KEPT = 1500
SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1.5, -1.5, 0.25, 4, 1e-45, -1e-45, 2.0**-126, 1e30, -1e30, 3.4e38]
    + [np.inf, -np.inf, np.nan, 1 + 2.0**-23, 1 - 2.0**-24, 127, 128, -149, -150, 2.0**24 + 2, 16777215.0, -7, 1 / 3],
    np.float32,
)


def families(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of fp32 arrays of one length."""
    rng = np.random.default_rng(seed)
    n = KEPT
    size = np.exp(rng.uniform(-40, 40, n)).astype(np.float32)
    small = rng.integers(1, 1 << 13, n).astype(np.float32) * np.float32(2) ** rng.integers(-80, 60, n)
    cubes = rng.integers(1, 1 << 9, n).astype(np.float32) * np.float32(2) ** rng.integers(-50, 40, n)
    squares = (rng.integers(1, 1 << 12, n).astype(np.float32) ** 2) * np.float32(4) ** rng.integers(-70, 50, n)
    near_one = (1 + rng.choice([-1, 1], n) * rng.integers(1, 1 << 12, n) * 2.0**-24).astype(np.float32)
    found = [
        (_bits(rng, n), _bits(rng, n)),
        *((size * rng.choice([-1, 1], n).astype(np.float32), np.full(n, y)) for y in (2, 3, 4, -1, -2, -3, 5, 17, -33)),
        *((size, np.full(n, y)) for y in (0.5, -0.5, 1.5, 2.5, 0.25, 0.75, 1 / 3, 2.2, 2.4, 1 / 2.4, 1e-7, 1e-30)),
        *((small, np.full(n, y)) for y in (2, -1)),
        *((squares, np.full(n, y)) for y in (0.5, 1.5, -0.5, 2.5)),
        *((cubes, np.full(n, y)) for y in (3, 2)),
        (squares**2, np.full(n, 0.75)),
        (np.full(n, 2), rng.integers(-151 * 8, 129 * 8, n) / 8),
        (near_one, np.exp(rng.uniform(10, 20, n)) * rng.choice([-1, 1], n)),
        # Results about the overflow threshold, the least normal and the least subnormal number.
        *((size, np.log(2) * (e + rng.uniform(-1, 1, n)) / np.log(size.astype(np.float64))) for e in (128, -126, -149)),
        tuple(v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL)),
        *nearest(rng),
    ]
    with np.errstate(all="ignore"):
        return [(np.asarray(x).astype(np.float32), np.asarray(y).astype(np.float32)) for x, y in found]


def nearest(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of many pairs those whose power is nearest to half-way between two fp32 numbers, by NumPy's longest format."""
    found = []
    for low, high in ((-3, 3), (-20, 20)):
        x = np.exp(rng.uniform(low, high, DRAWN)).astype(np.float32)
        y = rng.uniform(-4, 4, DRAWN).astype(np.float32)
        p = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        fraction = np.ldexp(np.frexp(p)[0], 24)
        from_middle = np.abs(fraction - np.floor(fraction) - np.longdouble(0.5))
        best = np.argpartition(from_middle, KEPT)[:KEPT]
        found.append((x[best], y[best]))
    return found


def _bits(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 1 << 32, count).astype(np.uint32).view(np.float32)


def prove(device: torch.device, seed: int = 0) -> dict[str, Any]:
    """The record: how many pairs, how many wrong, and some of those."""
    count, wrong = 0, []
    for x, y in families(seed):
        right, found = power.forward(x, y), pairs("pow", x, y, device)
        same = (right.view(np.uint32) == found.view(np.uint32)) | (np.isnan(right) & np.isnan(found))
        count += len(x)
        wrong += [f"{a:08x} {b:08x}" for a, b in zip(x[~same].view(np.uint32), y[~same].view(np.uint32), strict=True)]
    return {"inputs": count, "wrong": len(wrong), "wrong_at": wrong[:64], "holds": not wrong}
