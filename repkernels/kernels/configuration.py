"""Launch configurations: data that may follow the shape and the device, since no bit depends on it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import triton


class Configuration(NamedTuple):
    """A tile (BM, BN, BK), how a program is compiled, the tile rows that share L2, and persistent programs a processor.

    swap: the second operand's columns are the tile's rows, so that few rows of the first fill a narrow tile.
    """

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int
    swap: bool = False
    GROUP: int = 8
    programs: int = 1

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


def fitted(c: Configuration, bytes_per_element: int, device: torch.device) -> Configuration:
    """c with as many stages as shared memory holds: a stage is (BM + BN) * BK elements."""
    most = shared_memory(device) // ((c.BM + c.BN) * c.BK * bytes_per_element)
    return c._replace(num_stages=min(c.num_stages, max(most, 1)))


def pick(wide: Sequence[Configuration], out: torch.Tensor, bytes_per_element: int) -> Configuration:
    """The first configuration that fits two stages and whose tiles of out (batch, M, N) occupy the device; or the last."""
    if chosen := _forced.get():
        return fitted(chosen, bytes_per_element, out.device)
    batch, M, N = out.shape
    fitting = [c for c in (fitted(c, bytes_per_element, out.device) for c in wide) if c.num_stages > 1 or c.BM < 128]
    return next((c for c in fitting if batch * c.tiles(M, N) >= processors(out.device)), fitting[-1])


def pick_narrow(narrow: Mapping[int, Configuration], M: int) -> Configuration | None:
    """The configuration whose narrow tile just holds M rows, if there is one."""
    chosen = _forced.get()
    if chosen:
        return chosen if chosen.swap and chosen.BN >= M else None
    return next((c for height, c in narrow.items() if M <= height), None)
