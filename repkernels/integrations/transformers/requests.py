"""The requests of a batch as tensors: what each row of logits is sampled with, and by whom it is wanted.

It takes the place of transformers' list of logits processors, which knows a request by its last token only, and takes
parameters of the first request for all.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from repkernels.integrations.transformers.parameters import Parameters, sample_index

_INTEGERS = ("top_k",)
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
# Rows of the tensor of arguments, all 32 bits wide.
ROWS = ("seed_low", "seed_high", "position", "sample", "slot", *_INTEGERS, *_FLOATS)
WARM_UP = re.compile(r"__warmup_.*__$")


class Options(NamedTuple):
    """What a request carries beside its tokens."""

    parameters: Parameters
    capture: bool
    longest: int  # tokens, when it is finished


class Row(NamedTuple):
    """Whose logits a row is, `position` tokens after the prompt."""

    request_id: str
    position: int
    capture: bool
    state: Any


class Arguments(NamedTuple):
    """The parameters of `repkernels.sampling.sample`, (B,) each, on the logits' device."""

    seeds: Tensor
    positions: Tensor
    samples: Tensor
    slots: Tensor
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


class Requests(ContinuousBatchingLogitsProcessorList):
    """Fills the static tensor of arguments before a step, and keeps it for the sampling inside of the step."""

    def __init__(self, default: Parameters) -> None:
        super().__init__(LogitsProcessorList(), drop_unsupported_processors=False)
        self.default = default
        self.tensors_required = len(ROWS)
        self.do_processing = True
        self.rows: list[Row] = []
        self.arguments: Tensor | None = None
        self.capacity: int | None = None
        self.before_step: Any = None  # called with (rows): slots of the history, one for each row
        self._neutral = _packed([(Parameters(), 0, 0, -1)])

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Raises ValueError for a request that will not fit, before it can stop all others."""
        options = kwargs.get("options")
        if options is not None and self.capacity is not None and options.longest > self.capacity:
            raise ValueError(
                f"input_ids and max_new_tokens: {options.longest} tokens, but the cache holds {self.capacity}; raise "
                "num_blocks"
            )

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.copy_(torch.from_numpy(self._neutral))

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: Tensor) -> Tensor:
        self.rows = [_row(request.state) for request in requests_in_batch if request.has_new_token]
        slots = [-1] * len(self.rows) if self.before_step is None else self.before_step(self.rows)
        values = [
            (_options(row.state, self.default).parameters, row.position, sample_index(row.request_id), slot)
            for row, slot in zip(self.rows, slots, strict=True)
        ]
        count = len(values)
        if count:
            arg_storage[:, :count] = torch.from_numpy(_packed(values)).to(arg_storage.device)
        # Rows of padding, and of requests that have no new token yet.
        rest = arg_storage[:, count:]
        rest.copy_(torch.from_numpy(self._neutral).to(arg_storage.device).expand_as(rest))
        return arg_storage

    def __call__(self, input_ids: Tensor, scores: Tensor, logits_processor_args: Tensor) -> Tensor:
        self.arguments = logits_processor_args
        return scores

    def of(self, count: int) -> Arguments:
        """The arguments of the first rows, as the step that runs has them."""
        assert self.arguments is not None
        low, high, position, sample, slot, top_k, *floats = self.arguments[:, :count].unbind(0)
        seeds = (high.long() << 32) | (low.long() & 0xFFFFFFFF)
        numbers = (x.view(torch.float32) for x in floats)
        return Arguments(seeds, position, sample, slot.long(), top_k, *numbers)


def _options(state: Any, default: Parameters) -> Options:
    found: Options | None = state.logit_processor_kwargs.get("options")
    return Options(default, False, 0) if found is None else found


def prompt_length(state: Any) -> int:
    """Tokens of the prompt; a preempted request has what it generated among its initial tokens."""
    return int(state._true_initial_tokens or len(state.initial_tokens))


def _row(state: Any) -> Row:
    capture = _options(state, Parameters()).capture and not WARM_UP.match(state.request_id)
    return Row(state.request_id, max(0, state.position_offset - prompt_length(state)), capture, state)


def _packed(values: Sequence[tuple[Parameters, int, int, int]]) -> Any:
    """int32 (ROWS, B)."""
    made = np.zeros((len(ROWS), len(values)), np.int32)
    floats = made.view(np.float32)
    for i, (p, position, sample, slot) in enumerate(values):
        seed = p.seed % (1 << 64)
        made[:5, i] = np.array([seed % (1 << 32), seed >> 32, position, sample, slot % (1 << 32)], np.int64).astype(
            np.int32
        )
        for j, name in enumerate(_INTEGERS, 5):
            made[j, i] = getattr(p, name)
        for j, name in enumerate(_FLOATS, 5 + len(_INTEGERS)):
            floats[j, i] = getattr(p, name)
    return made
