"""Tiles of `native` attention: data that may follow the head size and the device, since no bit depends on it."""

from typing import NamedTuple


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
