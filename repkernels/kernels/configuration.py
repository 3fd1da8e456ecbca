"""Launch configurations: data that may follow the shape and the device, since no bit depends on it."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch

from repkernels.kernels.sizes import cdiv


class Configuration(NamedTuple):
    """A tile (BM, BN, BK), how a program is compiled, and the tile rows that share L2.

    swap: the second operand's columns are the tile's rows, so that few rows of the first fill a narrow tile.
    """

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int
    swap: bool = False
    GROUP: int = 8

    def tiles(self, M: int, N: int) -> int:
        """Tiles that cover an (M, N) result, before any swap."""
        if self.swap:
            M, N = N, M
        return cdiv(M, self.BM) * cdiv(N, self.BN)


_forced: ContextVar[Configuration | None] = ContextVar("repkernels_configuration", default=None)


@contextmanager
def use_configuration(configuration: Configuration) -> Iterator[None]:
    """Launches every contraction inside the block with `configuration`: for proofs that tiles change no bit."""
    token = _forced.set(configuration)
    try:
        yield
    finally:
        _forced.reset(token)


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the device; a small number where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory a program may use."""
    if device.type != "cuda":
        return 232448
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 65536)


@functools.cache
def fitted(c: Configuration, element: int, device: torch.device, result: int = 0) -> Configuration:
    """c with as many stages as shared memory holds: a stage is (BM + BN) * BK elements, beside BM * BN results.

    element, result: bytes.
    """
    most = (shared_memory(device) - c.BM * c.BN * result) // ((c.BM + c.BN) * c.BK * element)
    return c._replace(num_stages=min(c.num_stages, max(most, 1)))


def pick(wide: tuple[Configuration, ...], out: torch.Tensor, element: int, result: int = 0) -> Configuration:
    """The first configuration whose tiles of out (batch, M, N) occupy the device, or the last.

    Of those that fit two stages into shared memory, and are not mostly empty.
    """
    batch, M, N = out.shape
    return pick_for(wide, (batch, M, N), element, out.device, result)


def pick_for(
    wide: tuple[Configuration, ...], shape: tuple[int, int, int], element: int, device: torch.device, result: int = 0
) -> Configuration:
    """`pick` for a result of the shape (batch, M, N)."""
    if chosen := _forced.get():
        return fitted(chosen, element, device, result)
    return _picked(wide, *shape, element, result, device)


@functools.lru_cache(4096)
def _picked(
    wide: tuple[Configuration, ...], batch: int, M: int, N: int, element: int, result: int, device: torch.device
) -> Configuration:
    fitting = [c for c in (fitted(c, element, device, result) for c in wide) if c.num_stages > 1 and c.BM < 2 * M]
    return next((c for c in fitting if batch * c.tiles(M, N) >= _enough(device)), fitting[-1] if fitting else wide[-1])


def pick_narrow(narrow: tuple[Configuration, ...], M: int, N: int, device: torch.device) -> Configuration | None:
    """The first of the narrowest tiles that hold M rows whose number is two thirds of the device's multiprocessors, or
    the last of them."""
    if chosen := _forced.get():
        return chosen if chosen.swap and chosen.BN >= M else None
    holding = [c for c in narrow if c.BN >= M]
    narrowest = [c for c in holding if c.BN == holding[0].BN]
    enough = 2 * processors(device) // 3
    return next((c for c in narrowest if c.tiles(M, N) >= enough), narrowest[-1] if narrowest else None)


def _enough(device: torch.device) -> int:
    return 3 * processors(device) // 4
