"""Frequencies of rotary position embeddings on the host, the same bits everywhere (SPEC.md, "Rotary embeddings").

The variants of transformers' `ROPE_INIT_FUNCTIONS` whose frequencies are one set for all positions. transformers takes
powers and logarithms from the library of the device at hand, in fp32; here they are rounded to binary64 from decimal
arithmetic of 50 digits, all else is binary64, and the frequencies are rounded to fp32 once.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Any

import torch
from torch import Tensor

_CONTEXT = Context(prec=50, rounding=ROUND_HALF_EVEN)
_Found = tuple[list[float], float]


def rope_frequencies(
    head_dim: int,
    rope_parameters: Mapping[str, Any],
    *,
    max_position_embeddings: int | None = None,
    longrope: str | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, float]:
    """(inv_freq, attention_scaling), for `nn.functional.rope_cos_sin`.

    head_dim: the size of a head. rope_parameters: transformers' `config.rope_parameters` (of one layer type, where it
        has several): "rope_theta", "rope_type" ("default" if it is missing) and what that type takes:
        "default": "partial_rotary_factor"; "linear": "factor" too; "proportional": "factor", 1 if missing;
        "llama3": "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings";
        "yarn": "factor", "original_max_position_embeddings", and "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate"; "longrope": "short_factor", "long_factor",
        "original_max_position_embeddings", and "factor", "attention_factor".
    max_position_embeddings: the config's, from which "yarn" and "longrope" take a factor that is missing.
    longrope: "short" or "long", the one set that all positions shall have.
    Result: inv_freq (rotated / 2,) fp32, and a binary64 number.

    Raises ValueError for a type or parameter that is unknown, missing or out of range, and NotImplementedError where
    the frequencies would follow the longest sequence of the batch: "dynamic", and "longrope" without `longrope`.
    """
    name = rope_parameters.get("rope_type", "default")
    if name == "dynamic":
        raise NotImplementedError(
            "rope_type: 'dynamic' makes frequencies of the longest sequence of the batch; use 'default' where no "
            "sequence is longer than max_position_embeddings, or 'yarn'"
        )
    if name not in _TYPES:
        raise ValueError(f"rope_type: unknown type {name!r}; choose one of {', '.join(_TYPES)}")
    values = _Parameters(name, head_dim, rope_parameters, max_position_embeddings, longrope)
    found, scaling = _TYPES[name](values)
    return torch.tensor(found, dtype=torch.float64).to(torch.float32).to(device), scaling


class _Parameters:
    """rope_parameters, read with errors that name what is missing."""

    def __init__(
        self, name: str, head_dim: int, given: Mapping[str, Any], longest: int | None, longrope: str | None
    ) -> None:
        self.name, self.head_dim, self.given, self.longest, self.longrope = name, head_dim, given, longest, longrope
        if not isinstance(head_dim, int) or head_dim < 2:
            raise ValueError(f"head_dim: expected an integer of at least 2, got {head_dim!r}")
        self.theta = self.number("rope_theta")
        share = self.number("partial_rotary_factor", 1.0)
        if not share <= 1:
            raise ValueError(f"partial_rotary_factor: expected at most 1, got {share}")
        self.share, self.dim = share, int(head_dim * share)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.given.get(key)
        if value is None:
            if default is None:
                raise ValueError(f"rope_parameters: {self.name!r} needs {key!r}")
            return default
        if not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ValueError(f"{key}: expected a positive number, got {value!r}")
        return float(value)

    def optional(self, key: str) -> float | None:
        return None if self.given.get(key) is None else self.number(key)

    def factor(self) -> float:
        """ "factor", or how far positions go beyond those of the training."""
        if self.given.get("factor") is not None or self.longest is None:
            return self.number("factor")
        return self.longest / self.number("original_max_position_embeddings")

    def frequencies(self, count: int, dim: int) -> list[float]:
        return [power(self.theta, -2 * i, dim) for i in range(count)]


def power(base: float, numerator: int, denominator: int) -> float:
    """RN64(base ** (numerator / denominator)), from 50 digits, most of them right."""
    with localcontext(_CONTEXT):
        return float((Decimal(base).ln() * numerator / denominator).exp())


def logarithm(x: float) -> float:
    """RN64(ln x), likewise."""
    with localcontext(_CONTEXT):
        return float(Decimal(x).ln())


def _default(p: _Parameters) -> _Found:
    return p.frequencies((p.dim + 1) // 2, p.dim), 1.0


def _linear(p: _Parameters) -> _Found:
    factor = p.number("factor")
    return [f / factor for f in _default(p)[0]], 1.0


def _proportional(p: _Parameters) -> _Found:
    factor, rotated = p.number("factor", 1.0), int(p.share * p.head_dim // 2)
    found = [f / factor for f in p.frequencies(rotated, p.head_dim)]
    return found + [0.0] * (p.head_dim // 2 - rotated), 1.0


def _llama3(p: _Parameters) -> _Found:
    factor, low, high = p.number("factor"), p.number("low_freq_factor"), p.number("high_freq_factor")
    length = p.number("original_max_position_embeddings")
    found = []
    for f in _default(p)[0]:
        wave = 2 * math.pi / f
        if wave > length / low:
            f = f / factor
        elif wave >= length / high:
            smooth = (length / wave - low) / (high - low)
            f = (1 - smooth) * f / factor + smooth * f
        found.append(f)
    return found, 1.0


def _yarn(p: _Parameters) -> _Found:
    factor, scaling = p.factor(), p.optional("attention_factor")
    if scaling is None:
        first, second = p.optional("mscale"), p.optional("mscale_all_dim")
        if first and second:
            scaling = _yarn_scale(factor, first) / _yarn_scale(factor, second)
        else:
            scaling = _yarn_scale(factor, 1.0)
    length = p.number("original_max_position_embeddings")

    def place(rotations: float) -> float:
        return (p.dim * logarithm(length / (rotations * 2 * math.pi))) / (2 * logarithm(p.theta))

    low, high = place(p.number("beta_fast", 32.0)), place(p.number("beta_slow", 1.0))
    if p.given.get("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, p.dim - 1.0)
    if low == high:
        high += 0.001
    found = []
    for i in range((p.dim + 1) // 2):
        wave = power(p.theta, 2 * i, p.dim)
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        kept = 1 - ramp
        found.append((1 / (factor * wave)) * (1 - kept) + (1 / wave) * kept)
    return found, scaling


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * logarithm(factor) + 1.0


def _longrope(p: _Parameters) -> _Found:
    if p.longrope not in ("short", "long"):
        raise NotImplementedError(
            "rope_type: 'longrope' takes one of two sets of frequencies by the longest sequence of the batch; name one "
            "for all positions, longrope='short' (sequences up to original_max_position_embeddings) or 'long'"
        )
    length, factor = p.number("original_max_position_embeddings"), p.factor()
    divisors: Sequence[float] = p.given.get(f"{p.longrope}_factor") or ()
    found = _default(p)[0]
    if len(divisors) != len(found):
        raise ValueError(f"{p.longrope}_factor: expected {len(found)} numbers, got {len(divisors)}")
    scaling = p.optional("attention_factor")
    if scaling is None:
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + logarithm(factor) / logarithm(length))
    waves = [power(p.theta, 2 * i, p.dim) for i in range(len(found))]
    return [1 / (float(d) * wave) for d, wave in zip(divisors, waves, strict=True)], scaling


_TYPES = {
    "default": _default,
    "linear": _linear,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
