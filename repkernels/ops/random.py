"""Draws of random numbers on the device where they are needed (SPEC.md, "Random numbers")."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from repkernels import generator as streams
from repkernels.ops.backend import backend


def device_of(device: torch.device | str | None) -> torch.device:
    """The device that is meant, torch's default one for None."""
    # Not torch.get_default_device, which compilers do not trace.
    return torch.empty(0).device if device is None else torch.device(device)


def draw(
    kind: str, key: tuple[int, int], size: Sequence[int], a: float, b: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A tensor of `kind` "uniform" (low a, high b) or "normal" (mean a, standard deviation b) with a draw's key."""
    out = torch.empty(size, dtype=dtype, device=device)
    if out.is_meta:
        return out
    check_capture(device)
    if kind == "uniform":
        backend("random", device.type).uniform(out, *key, a, b)
    else:
        backend("normal", device.type).normal(out, *key, a, b, 0)
    return out


def _run(
    key: Tensor, kind: str, size: Sequence[int], a: float, b: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return draw(kind, streams.numbers(key), size, a, b, dtype, device)


_op = torch.library.custom_op("repkernels::draw", _run, mutates_args=())


@_op.register_fake
def _(
    key: Tensor, kind: str, size: Sequence[int], a: float, b: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def traced_draw(kind: str, size: Sequence[int], a: float, b: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`draw` from the next stream of the process's generator, where a compiler listens."""
    return torch.ops.repkernels.draw(streams.traced(), kind, size, a, b, dtype, device)


def below(key: tuple[int, int], size: Sequence[int], thresholds: Tensor) -> Tensor:
    """bool of this size: word < threshold, of int64 thresholds, one or as many as elements."""
    out = torch.empty(size, dtype=torch.bool, device=thresholds.device)
    if not out.is_meta:
        check_capture(out.device)
        backend("random", out.device.type).below(out, *key, thresholds.contiguous())
    return out


def integers(key: tuple[int, int], size: Sequence[int], spans: Tensor, low: int) -> Tensor:
    """int64 of this size: low + floor(W * span / 2^64); spans: int64, each for an equal share of the elements."""
    out = torch.empty(size, dtype=torch.int64, device=spans.device)
    if out.numel() and not out.is_meta:
        check_capture(out.device)
        backend("random", out.device.type).integers(out, *key, spans.contiguous(), low)
    return out


def span(number: int, device: torch.device) -> Tensor:
    """An integer below 2^64 as int64 bits, (1,)."""
    return torch.from_numpy(np.array([number], np.uint64).view(np.int64)).to(device)


def keys(key: tuple[int, int], size: Sequence[int], device: torch.device) -> Tensor:
    """int64 of this size that order as the elements' 64-bit words do."""
    out = torch.empty(size, dtype=torch.int64, device=device)
    if not out.is_meta:
        check_capture(device)
        backend("random", device.type).keys(out, *key)
    return out


def race(key: tuple[int, int], weights: Tensor) -> Tensor:
    """int32 of the size of fp32 `weights`: the bits of each element's time."""
    out = torch.empty(weights.shape, dtype=torch.int32, device=weights.device)
    check_capture(out.device)
    backend("multinomial", out.device.type).race(out, *key, weights.contiguous())
    return out


def check_capture(device: torch.device) -> None:
    """Raises while a CUDA graph is captured: its replays would repeat one stream."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("random numbers: a captured CUDA graph would repeat one draw; draw outside of the graph")
