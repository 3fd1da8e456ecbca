"""How one request's tokens are chosen: its own parameters, whoever else is in the batch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from repkernels import random

_CHILD = re.compile(r"__child#(\d+)$")
SEEDS = 1 << 63


@dataclass(frozen=True)
class Parameters:
    """The parameters of `repkernels.sampling.sample` for one request.

    temperature: 0 is greedy. top_k: 0 keeps all. seed: from -2^63 to 2^63 - 1.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            kind: Any = int if name in ("top_k", "seed") else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise TypeError(f"{name}: expected {'an integer' if kind is int else 'a number'}, got {value!r}")
            if not low <= value <= high:
                raise ValueError(f"{name}: expected {low} to {high}, got {value}")

    @property
    def filtered(self) -> bool:
        """Whether some tokens are excluded by their rank or probability."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    def with_values(self, values: Mapping[str, Any]) -> "Parameters":
        """Other values for some parameters; None leaves one as it is. `do_sample=False` is temperature 0.

        Raises TypeError for an unknown name or a value of another type, ValueError for one out of range.
        """
        given = {name: value for name, value in values.items() if value is not None}
        if not given.pop("do_sample", True):
            given["temperature"] = 0.0
        unknown = sorted(set(given) - NAMES)
        if unknown:
            raise TypeError(f"unknown sampling parameters {', '.join(unknown)}; there are {', '.join(sorted(NAMES))}")
        return replace(self, **given)


_LARGEST = 3.4028234663852886e38
_BOUNDS = (
    ("temperature", 0, _LARGEST),
    ("top_k", 0, (1 << 31) - 1),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 2.0**-126, _LARGEST),
    ("frequency_penalty", -_LARGEST, _LARGEST),
    ("presence_penalty", -_LARGEST, _LARGEST),
    ("seed", -SEEDS, SEEDS - 1),
)
NAMES = frozenset(field.name for field in fields(Parameters))

# What each of transformers' warpers says about a request.
_WARPERS = {
    "TemperatureLogitsWarper": ("temperature", "temperature"),
    "TopKLogitsWarper": ("top_k", "top_k"),
    "TopPLogitsWarper": ("top_p", "top_p"),
    "MinPLogitsWarper": ("min_p", "min_p"),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "penalty"),
}
# They take tokens away or leave all as it is, by nothing but what was generated.
_EXACT = {
    "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
}


def from_processors(processors: Iterable[Any], do_sample: bool) -> tuple[Parameters, list[Any]]:
    """The parameters that a list of logits processors amounts to, and those that stay before the sampling.

    Raises NotImplementedError, naming all of them, for processors that compute in ways that depend on the device or
    on the padding.
    """
    values: dict[str, Any] = {"temperature": 1.0} if do_sample else {}
    kept, refused = [], []
    for processor in processors:
        name = type(processor).__name__
        if name in _WARPERS:
            parameter, attribute = _WARPERS[name]
            value = getattr(processor, attribute)
            if getattr(processor, "prompt_ignore_length", None):
                refused.append(f"{name} (prompt_ignore_length)")
            if do_sample or parameter == "repetition_penalty":
                values[parameter] = value if isinstance(value, int) else float(value)
        elif name in _EXACT:
            kept.append(processor)
        else:
            refused.append(name)
    if refused:
        raise NotImplementedError(
            f"logits_processor: {', '.join(refused)}: not reproducible across devices and batches; supported are "
            "temperature, top_k, top_p, min_p, repetition_penalty, min_new_tokens, suppress_tokens, "
            "begin_suppress_tokens, forced_eos_token_id, prefix_allowed_tokens_fn"
        )
    return Parameters().with_values(values), kept


def from_config(config: Any) -> Parameters:
    """The parameters of a GenerationConfig, for continuous batching; what it does not set is neutral."""
    names = ("temperature", "top_k", "top_p", "min_p") if config.do_sample else ()
    values = {name: getattr(config, name, None) for name in (*names, "repetition_penalty")}
    if config.do_sample and values["temperature"] is None:
        values["temperature"] = 1.0
    refused = [name for name, neutral in _NOT_IN_BATCHES if getattr(config, name, None) not in (None, *neutral)]
    if refused:
        raise NotImplementedError(
            f"generation_config: {', '.join(refused)} not supported in continuous batching; per request there are "
            f"{', '.join(sorted(NAMES))}"
        )
    return Parameters().with_values(values)


_NOT_IN_BATCHES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("num_beams", (1,)),
    ("typical_p", (1.0,)),
    ("epsilon_cutoff", (0.0,)),
    ("eta_cutoff", (0.0,)),
    ("top_h", ()),
    ("no_repeat_ngram_size", (0,)),
    ("encoder_repetition_penalty", (1.0,)),
    ("encoder_no_repeat_ngram_size", (0,)),
    ("bad_words_ids", ()),
    ("sequence_bias", ()),
    ("min_length", (0,)),
    ("min_new_tokens", (0,)),
    ("forced_bos_token_id", ()),
    ("forced_eos_token_id", ()),
    ("suppress_tokens", ([],)),
    ("begin_suppress_tokens", ([],)),
    ("exponential_decay_length_penalty", ()),
    ("guidance_scale", (1.0,)),
    ("watermarking_config", ()),
    ("renormalize_logits", (False,)),
    ("remove_invalid_values", (False,)),
)


def drawn_seed() -> int:
    """A seed for a request that names none: from the next stream of `repkernels.random`."""
    return int(random.randint(0, 1 << 62, (1,)))


def sample_index(request_id: str) -> int:
    """Which of a request's answers an id stands for: continuous batching names the others its children."""
    found = _CHILD.search(request_id)
    return int(found[1]) + 1 if found else 0
