"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011); SPEC.md, "Random numbers"."""

import numpy as np

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def block(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """The four 32-bit words of each counter: `counter` is four arrays and `key` two integers, all of 32-bit values."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in counter)
    k0, k1 = key
    for _ in range(10):
        left = np.uint64(_MULTIPLIERS[0]) * c0
        right = np.uint64(_MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            (right >> _32) ^ c1 ^ np.uint64(k0),
            right & _LOW,
            (left >> _32) ^ c3 ^ np.uint64(k1),
            left & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(seed: int, stream: int, count: int) -> np.ndarray:
    """Words 0 .. count - 1 of a stream, uint32: word i is word i mod 4 of the counter (floor(i / 4), stream)."""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    same = np.ones_like(blocks)
    counter = (
        blocks & _LOW,
        blocks >> _32,
        same * np.uint64(stream & 0xFFFFFFFF),
        same * np.uint64(stream >> 32 & 0xFFFFFFFF),
    )
    out = block(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    return np.stack(out, axis=-1).reshape(-1)[:count].astype(np.uint32)


def uniform(seed: int, stream: int, count: int, low: float, high: float) -> np.ndarray:
    """U(low, high), fp32: RN(RN(u * RN32(high - low)) + RN32(low)) with u = (word >> 8) * 2^-24."""
    u = (words(seed, stream, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return u * np.float32(high - low) + np.float32(low)


def permutation(seed: int, stream: int, count: int) -> np.ndarray:
    """0 .. count - 1 by ascending 64-bit key (word 2i) * 2^32 + (word 2i + 1), equal keys in index order; int64."""
    pairs = words(seed, stream, 2 * count).astype(np.uint64).reshape(count, 2)
    return np.argsort(pairs[:, 0] << _32 | pairs[:, 1], kind="stable").astype(np.int64)
