"""The words that every random number is made of (SPEC.md, "Random numbers"): Philox4x32-10, here by NumPy.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Key = seed (low, high), counter = (block low,
high, stream low, high). Word i of a stream is word i mod 4 of block i // 4.
"""

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_BLOCKS = 1 << 18  # counters computed at a time, so that the temporaries stay within a cache


def words(seed: int, stream: int, count: int) -> np.ndarray:
    """The first `count` 32-bit words of a stream."""
    out = np.empty((-(-count // 4), 4), np.uint32)
    for start in range(0, len(out), _BLOCKS):
        part = out[start : start + _BLOCKS]
        block = np.arange(start, start + len(part), dtype=np.uint64)
        for column, word in enumerate(philox(block, seed, stream)):
            part[:, column] = word
    return out.reshape(-1)[:count]


def philox(block: np.ndarray, seed: int, stream: int) -> tuple[np.ndarray, ...]:
    """The four words of each block, as 64-bit integers below 2^32."""
    x0, x1 = block & _LOW, block >> _SHIFT
    x2, x3 = np.full_like(block, stream & 0xFFFFFFFF), np.full_like(block, stream >> 32)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (p1 >> _SHIFT) ^ x1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _SHIFT) ^ x3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return x0, x1, x2, x3
