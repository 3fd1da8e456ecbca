"""Draws from a stream, SPEC.md, "Random numbers"; the words, uniform and permutation are in philox.py."""

import math

import mpmath
import numpy as np

from reference.functions import ln_f32, rounded32
from reference.philox import block, words

F32 = np.float32


def normal(seed: int, stream: int, count: int, mean: float = 0.0, std: float = 1.0, turn: int = 0) -> np.ndarray:
    """N(mean, std^2), fp32, from the words 2^34 * turn onwards."""
    w = _later_words(seed, stream, count + count % 2, turn).reshape(-1, 2)
    u = ((w[:, 0] >> np.uint32(8)) + np.uint32(1)).astype(F32) * F32(2.0**-24)
    r = np.sqrt(F32(-2) * ln_f32(u))
    angle = [_sincospi(int(k)) for k in w[:, 1] >> np.uint32(8)]
    sine, cosine = np.array(angle, F32).reshape(-1, 2).T
    z = np.stack([r * cosine, r * sine], axis=1).reshape(-1)[:count]
    return z * F32(std) + F32(mean)


def _later_words(seed: int, stream: int, count: int, turn: int) -> np.ndarray:
    """`count` words from word 2^34 * turn on: the block's counter has the turn in its high word."""
    if turn == 0:
        return words(seed, stream, count)
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    same = np.ones_like(blocks)
    counter = (blocks, same * np.uint64(turn), same * np.uint64(stream & 0xFFFFFFFF), same * np.uint64(stream >> 32))
    out = block(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack(out, axis=-1).reshape(-1)[:count].astype(np.uint32)


def _sincospi(k: int) -> tuple[float, float]:
    """RN32 of sin and cos of pi * k * 2^-23; the zeros are +0."""
    with mpmath.workprec(200):
        angle = mpmath.mpf(k) / 2**23
        pair = mpmath.sinpi(angle), mpmath.cospi(angle)
        return tuple(0.0 if x == 0 else rounded32(x) for x in pair)  # type: ignore[return-value]


def bernoulli(seed: int, stream: int, count: int, p: float | np.ndarray) -> np.ndarray:
    """bool: word i < floor(p_i * 2^32)."""
    limits = [int(math.floor(float(q) * 2.0**32)) for q in np.broadcast_to(p, count)]
    return words(seed, stream, count).astype(np.int64) < np.array(limits, np.int64)


def words64(seed: int, stream: int, count: int) -> list[int]:
    """W_i = word 2i * 2^32 + word 2i + 1."""
    pairs = words(seed, stream, 2 * count).reshape(-1, 2).tolist()
    return [high << 32 | low for high, low in pairs]


def randint(seed: int, stream: int, count: int, low: int, high: int) -> np.ndarray:
    """low + floor(W_i * (high - low) / 2^64), int64."""
    return np.array([low + (w * (high - low) >> 64) for w in words64(seed, stream, count)], np.int64)


def multinomial(seed: int, stream: int, weights: np.ndarray, n: int, replacement: bool) -> np.ndarray:
    """(R, n) int64 of fp32 weights (R, C)."""
    weights = np.asarray(weights, F32)
    rows, classes = weights.shape
    if not replacement:
        drawn = words64(seed, stream, weights.size)
        times = np.array([_time(w, x) for w, x in zip(drawn, weights.reshape(-1), strict=True)])
        return np.argsort(times.reshape(weights.shape), axis=1, kind="stable")[:, :n].astype(np.int64)
    places = iter(words64(seed, stream, rows * n))
    result = []
    for row in weights:
        exponent = 62 - (classes - 1).bit_length() - math.frexp(float(row.max()))[1]
        shares = [_floor_scaled(float(x), exponent) for x in row]
        total, drawn_row = sum(shares), []
        for _ in range(n):
            place = next(places) * total >> 64
            index = 0
            while place >= shares[index]:
                place -= shares[index]
                index += 1
            drawn_row.append(index)
        result.append(drawn_row)
    return np.array(result, np.int64).reshape(rows, n)


def _floor_scaled(x: float, exponent: int) -> int:
    """floor(x * 2^exponent), exactly."""
    numerator, denominator = x.as_integer_ratio()
    return (numerator << exponent) // denominator if exponent >= 0 else numerator // (denominator << -exponent)


def _time(word: int, weight: np.floating) -> float:
    """RN(-log1p(-v) / weight), v = RN32(floor(word / 2) * 2^-63); beyond infinity where the weight is 0."""
    if not weight > 0:
        return math.nan  # NumPy sorts it last
    v = F32(word >> 1) * F32(2.0**-63)
    if v in (0, 1):
        return math.inf if v == 1 else 0.0
    with mpmath.workprec(200):
        minus_log = F32(rounded32(-mpmath.log1p(-mpmath.mpf(float(v)))))
    with np.errstate(all="ignore"):
        return float(minus_log / weight)
