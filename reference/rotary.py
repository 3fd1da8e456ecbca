"""Rotary position embeddings, SPEC.md, section of this name."""

from typing import Any

import mpmath
import numpy as np

from reference import formats, unary


def tables(
    positions: np.ndarray, inv_freq: np.ndarray, scaling: float, dtype: str, interleaved: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin (..., 2 F) of integer positions (...) and inv_freq (F,) fp32."""
    angle = (positions[..., None].astype(np.float64) * inv_freq.astype(np.float64)).astype(np.float32)
    found = []
    for name in ("cos", "sin"):
        with np.errstate(all="ignore"):
            values = unary.forward(name, angle.reshape(-1)).reshape(angle.shape) * np.float32(scaling)
        twice = np.repeat(values, 2, axis=-1) if interleaved else np.concatenate([values, values], -1)
        found.append(formats.rounded(twice, dtype))
    return found[0], found[1]


def rotate(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, dtype: str, interleaved: bool = False, inverse: bool = False
) -> np.ndarray:
    """x (..., D) rotated by cos and sin (..., R), broadcast; inverse: the transposed rotation."""
    rotated = cos.shape[-1]
    first = np.arange(0, rotated, 2) if interleaved else np.arange(rotated // 2)
    second = first + (1 if interleaved else rotated // 2)
    out = x.copy()
    a, b = x[..., first], x[..., second]
    with np.errstate(all="ignore"):
        if inverse:
            p = a * cos[..., first] + b * sin[..., second]
            q = b * cos[..., second] - a * sin[..., first]
        else:
            p = a * cos[..., first] - b * sin[..., first]
            q = b * cos[..., second] + a * sin[..., second]
    out[..., first], out[..., second] = formats.rounded(p, dtype), formats.rounded(q, dtype)
    return out


def frequencies(head_dim: int, name: str, theta: float, **p: float) -> tuple[np.ndarray, float]:
    """inv_freq, fp32, and the scaling of the types default, linear, proportional, llama3 and yarn."""
    share = p.get("partial_rotary_factor", 1.0)
    dim = head_dim if name == "proportional" else int(head_dim * share)
    powers = [float(_exact(lambda i=i: mpmath.mpf(theta) ** (mpmath.mpf(-2 * i) / dim))) for i in range((dim + 1) // 2)]
    scaling = 1.0
    if name == "linear":
        powers = [f / p["factor"] for f in powers]
    if name == "proportional":
        rotated = int(share * head_dim // 2)
        powers = [f / p.get("factor", 1.0) for f in powers[:rotated]] + [0.0] * (head_dim // 2 - rotated)
    if name == "llama3":
        powers = [_llama3(f, **p) for f in powers]
    if name == "yarn":
        scaling = 0.1 * 1.0 * _log(p["factor"]) + 1.0 if p["factor"] > 1 else 1.0
        waves = [float(_exact(lambda i=i: mpmath.mpf(theta) ** (mpmath.mpf(2 * i) / dim))) for i in range(len(powers))]
        powers = _yarn(waves, theta, dim, p["factor"], p["original_max_position_embeddings"])
    return np.array(powers, np.float64).astype(np.float32), scaling


def _exact(value: Any) -> Any:
    with mpmath.workprec(300):
        return value()


def _log(x: float) -> float:
    return float(_exact(lambda: mpmath.log(mpmath.mpf(x))))


def _llama3(
    f: float, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_position_embeddings: float
) -> float:
    wave = 2 * np.pi / f
    if wave < original_max_position_embeddings / high_freq_factor:
        return f
    if wave > original_max_position_embeddings / low_freq_factor:
        return f / factor
    s = (original_max_position_embeddings / wave - low_freq_factor) / (high_freq_factor - low_freq_factor)
    return (1 - s) * f / factor + s * f


def _yarn(waves: list[float], theta: float, dim: int, factor: float, length: float) -> list[float]:
    """beta_fast 32, beta_slow 1, truncated."""
    ends = [dim * _log(length / (rotations * 2 * np.pi)) / (2 * _log(theta)) for rotations in (32.0, 1.0)]
    low, high = max(np.floor(ends[0]), 0.0), min(np.ceil(ends[1]), dim - 1.0)
    high = high + 0.001 if low == high else high
    found = []
    for i, wave in enumerate(waves):
        kept = 1 - min(max((i - low) / (high - low), 0.0), 1.0)
        found.append(1 / (factor * wave) * (1 - kept) + 1 / wave * kept)
    return found
