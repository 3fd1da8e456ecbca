"""Launch configurations: data that may follow the shape and the device, since no bit depends on it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import triton


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
        return triton.cdiv(M, self.BM) * triton.cdiv(N, self.BN)


_forced: ContextVar[Configuration | None] = ContextVar("repkernels_configuration", default=None)


@contextmanager
def use_configuration(configuration: Configuration) -> Iterator[None]:
    """Launches every contraction inside the block with `configuration`: for proofs that tiles change no bit."""
    token = _forced.set(configuration)
    try:
        yield
    finally:
        _forced.reset(token)


def processors(device: torch.device) -> int:
    """Multiprocessors of the device; a small number where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory a program may use."""
    if device.type != "cuda":
        return 232448
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 65536)


def pick(
    wide: Sequence[Configuration], narrow: Mapping[int, Configuration], out: torch.Tensor, bytes_per_element: int
) -> Configuration:
    """The narrow configuration that just holds M; or else the first wide one whose tiles occupy the device, or the last.

    Only what fits into shared memory, with fewer stages where need be: a stage holds (BM + BN) * BK elements.
    """
    if chosen := _forced.get():
        return chosen
    batch, M, N = out.shape
    limit = shared_memory(out.device)

    def fitted(c: Configuration) -> Configuration:
        return c._replace(num_stages=min(c.num_stages, limit // ((c.BM + c.BN) * c.BK * bytes_per_element)))

    for height, configuration in narrow.items():
        if height >= M and fitted(configuration).num_stages > 1:
            return fitted(configuration)
    fitting = [c for c in map(fitted, wide) if c.num_stages > 1] or [fitted(wide[-1])]
    occupied = (c for c in fitting if batch * c.tiles(M, N) >= processors(out.device))
    return next(occupied, fitting[-1])
