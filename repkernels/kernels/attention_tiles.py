"""Tiles of `native` attention: data that may follow the head size and the device, since no bit depends on it."""

from typing import NamedTuple

import torch

from repkernels.kernels.configuration import shared_memory


class Tile(NamedTuple):
    """How a program is compiled: rows of q, warps, stages of the loop over keys."""

    BM: int
    num_warps: int
    num_stages: int


# Of many rows, by the larger of the two head sizes, as padded.
TILES = {64: Tile(128, 8, 3), 128: Tile(128, 8, 3), 256: Tile(64, 8, 1)}
# Of few rows, the rows following the heads of a group: keys spread over programs, and not.
PARTS = Tile(16, 4, 3)
UNSPLIT = Tile(16, 4, 3)


class GradientTile(NamedTuple):
    """Queries and keys of a program's products, warps, stages."""

    BM: int
    BN: int
    num_warps: int
    num_stages: int


# dQ, over the keys, and dK and dV, over the queries.
QUERY_GRADIENT = {64: GradientTile(128, 64, 8, 3), 128: GradientTile(128, 64, 8, 3), 256: GradientTile(64, 64, 8, 1)}
KEY_GRADIENT = {64: GradientTile(64, 128, 8, 3), 128: GradientTile(64, 64, 4, 2), 256: GradientTile(64, 64, 8, 1)}


def stages_of(most: int, fixed: int, stage: int, device: torch.device) -> int:
    """As many stages, up to `most`, as shared memory holds beside what stays there; in bytes."""
    return max(1, min(most, (shared_memory(device) - fixed) // stage))
