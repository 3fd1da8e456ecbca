"""`generate` with this library's sampling: a row's tokens depend on its own prompt, seed and parameters alone."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from repkernels.integrations.transformers import parameters
from repkernels.integrations.transformers.parameters import Parameters
from repkernels.sampling import sample

Seeds = int | Sequence[int] | None
_seeds: ContextVar[Seeds] = ContextVar("repkernels_seeds", default=None)


@contextmanager
def seeded(seed: Seeds) -> Iterator[None]:
    token = _seeds.set(seed)
    try:
        yield
    finally:
        _seeds.reset(token)


def seeds_for(prompts: int, seed: Seeds = None) -> list[int | None]:
    """What `seed`, or that of the call that is running, says of each prompt."""
    given = _seeds.get() if seed is None else seed
    if given is None or isinstance(given, int):
        return [given] * prompts
    if len(given) != prompts:
        raise ValueError(f"seed: {len(given)} seeds for {prompts} prompts; give one, or one for each")
    return list(given)


class Choice(LogitsProcessor):
    """The last processor: all but the token that `sample` chooses becomes -inf.

    prompt: ids (B, L) of the prompts, -1 where there is padding. Rows are `samples` answers to each prompt.
    """

    def __init__(self, chosen: Parameters, prompt: Tensor, seeds: list[int], samples: int) -> None:
        device = prompt.device
        self.parameters, self.prompt = chosen, prompt
        self.seeds = torch.tensor(seeds, dtype=torch.int64).repeat_interleave(samples).to(device)
        self.samples = torch.arange(samples).repeat(len(seeds)).to(device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        p, output = self.parameters, input_ids[:, self.prompt.shape[1] :]
        tokens = sample(
            scores,
            temperature=p.temperature,
            top_k=p.top_k,
            top_p=p.top_p,
            min_p=p.min_p,
            repetition_penalty=p.repetition_penalty,
            frequency_penalty=p.frequency_penalty,
            presence_penalty=p.presence_penalty,
            prompt=self.prompt if p.penalised else None,
            output=output if p.penalised else None,
            seeds=self.seeds,
            positions=output.shape[1],
            samples=self.samples,
            logprobs=None,
        ).tokens
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


def choosing(input_ids: Tensor, processors: Any, config: Any, mask: Tensor | None) -> tuple[LogitsProcessorList, Any]:
    """The processors and configuration with which transformers' greedy loop takes the tokens that `sample` chooses."""
    if config.cache_implementation == "quantized":
        raise NotImplementedError("cache_implementation: 'quantized' rounds keys and values of several tokens together")
    if config.output_scores:
        raise NotImplementedError("output_scores: scores after sampling are not kept; ask for output_logits")
    chosen, kept = parameters.from_processors(processors, config.do_sample)
    samples = config.num_return_sequences or 1
    given = seeds_for(input_ids.shape[0] // samples)
    seeds = [parameters.drawn_seed() if s is None and config.do_sample else s or 0 for s in given]
    prompt = input_ids
    if mask is not None:
        prompt = prompt.masked_fill(mask[:, -prompt.shape[1] :] == 0, -1)
    greedy = copy.copy(config)
    greedy.do_sample = False
    return LogitsProcessorList([*kept, Choice(chosen, prompt, seeds, samples)]), greedy
