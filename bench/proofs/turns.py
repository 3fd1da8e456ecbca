"""sincospi on the arguments that random normal numbers have: the multiples of 2^-23 below 2, 2^24 in all."""

from typing import Any

import torch

from .library import results
from .measure import measure

STEPS = 1 << 24
CHUNK = 1 << 20


def prove(device: torch.device, count: int = STEPS) -> dict[str, Any]:
    """The record of sin(pi x) and cos(pi x): all arguments, or about `count` of them, evenly spread."""
    numerators = torch.arange(0, STEPS, max(1, STEPS // count))
    patterns = (numerators.float() * 2.0**-23).view(torch.int32).to(torch.int64)
    found: dict[str, Any] = {"inputs": len(patterns)}
    wrong = 0
    for name in ("sinpi", "cospi"):
        nearest, at = 1.0, []
        for listed in patterns.to(device).split(CHUNK):
            right, distance = measure(name, listed, device)
            # No sine of such an angle is half-way between two fp32 numbers, so distance 0 would be an error.
            different = (results(name, listed, device) != right) | (distance == 0)
            nearest = min(nearest, distance.min().item())
            at += listed[different].tolist()
        found[name] = {"wrong": len(at), "wrong_at": [f"{x:08x}" for x in at[:64]], "nearest_midpoint_ulp": nearest}
        wrong += len(at)
    return {**found, "holds": not wrong}
