"""One request's tokens and logits out of transformers' continuous batching, our kernels enabled or not.

Logits are copied where the model's runner samples, into memory that CUDA graphs write again at each replay, and read
after every step; rows belong to the requests that get a token, in order. Only names that transformers 5.17 and later
share are used.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import configuration_utils
from transformers.generation.continuous_batching import scheduler as schedulers

Prompt = Sequence[int]
_CUTS = "repkernels_cuts"
_PATIENCE = 600  # seconds for the next answer


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the batches are made. None and 0 are what fits the prompts.

    cuts: the most tokens of each step, in turn; page_size: tokens of a page of the cache; num_blocks: pages of the
    cache, few of them force requests out of the batch; sharing: of pages by prompts that begin alike; sampling: options
    of the generation config, greedy without them.
    """

    max_batch_tokens: int = 0
    cuts: tuple[int, ...] = ()
    page_size: int = 16
    num_blocks: int = 0
    sharing: bool = True
    cuda_graphs: bool = False
    seed: int | None = None
    sampling: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one request got: its tokens, and the logits of each (n, V), fp32 on the CPU.

    A server's answer has strings and log-probabilities, and digests of the rows of logits if the server gives them.
    """

    tokens: tuple[Any, ...]
    logits: Tensor
    rows: tuple[str, ...] = ()


class Session:
    """Requests to one manager, and so to one cache: `with session(model, ...) as s: s.answers(prompts)`."""

    def __init__(self, manager: Any, new_tokens: int) -> None:
        self.manager, self.new_tokens = manager, new_tokens
        self._numbers = itertools.count()
        self._seen: dict[tuple[str, int], Tensor] = {}
        self._watched: set[str] = set()
        self._started = False
        create = manager._create_batch_processor

        def created() -> Any:
            processor = create()
            self._record(processor)
            return processor

        manager._create_batch_processor = created

    def _record(self, processor: Any) -> None:
        runner = processor.model_runner
        if getattr(runner, "_repkernels_recorded", False):
            return
        runner._repkernels_recorded = True
        sample, compute = runner._sample, runner.compute_batch
        config = processor.config
        rows = processor.cb_config.max_requests_per_batch
        memory = torch.empty((rows, config.vocab_size), dtype=torch.float32, device=processor.model_device)

        def recorded(scores: Tensor, output_ids: Tensor) -> None:
            found = scores.reshape(-1, scores.shape[-1])
            memory[: len(found)].copy_(found)
            sample(scores, output_ids)

        def computed(*args: Any, **kwargs: Any) -> None:
            compute(*args, **kwargs)
            if memory.is_cuda:
                torch.cuda.synchronize(memory.device)
            futures = runner.inputs_and_outputs.requests_in_batch
            for row, state in enumerate(f.state for f in futures if f.has_new_token):
                if state.request_id in self._watched:
                    self._seen[state.request_id, state.position_offset] = memory[row].cpu().clone()

        runner._sample, runner.compute_batch = recorded, computed

    def answers(self, prompts: Sequence[Prompt], watched: Sequence[int] | None = None) -> list[Answer]:
        """The answers to prompts that are asked at once, in this order; logits of those in `watched` (all) only.

        Raises RuntimeError with what a request failed by.
        """
        names = self._names(len(prompts))
        results = self._ask(names, prompts, set(names) if watched is None else {names[i] for i in watched}, names)
        return [self._answer(name, len(prompt), results[name]) for name, prompt in zip(names, prompts, strict=True)]

    def samples(self, prompts: Sequence[Prompt], count: int) -> list[Answer]:
        """The `count` answers to the last of the prompts, where the generation config asks for so many of each."""
        names = self._names(len(prompts))
        everyone = [name + child for name in names for child in ("", *(f"__child#{i}" for i in range(count - 1)))]
        own = everyone[-count:]
        results = self._ask(names, prompts, set(own), everyone)
        return [self._answer(name, len(prompts[-1]), results[name]) for name in own]

    def _names(self, count: int) -> list[str]:
        return [f"r{next(self._numbers)}" for _ in range(count)]

    def _ask(
        self, names: Sequence[str], prompts: Sequence[Prompt], watched: set[str], everyone: Sequence[str]
    ) -> dict[str, Any]:
        self._watched = watched
        self._seen.clear()
        for name, prompt in zip(names, prompts, strict=True):
            self.manager.add_request(list(prompt), request_id=name, max_new_tokens=self.new_tokens, eos_token_id=-1)
        if not self._started:
            # Started after the first requests, so that these are all in the first batch.
            self.manager.start()
            self._started = True
        results: dict[str, Any] = {}
        while len(results) < len(everyone):
            result = self.manager.get_result(timeout=_PATIENCE)
            if result is None:
                raise RuntimeError(f"no answer within {_PATIENCE} s")
            if result.error is not None:
                raise RuntimeError(f"a request failed: {result.error}")
            if result.is_finished():
                results[result.request_id] = result
        return results

    def _answer(self, name: str, prompt: int, result: Any) -> Answer:
        tokens = tuple(result.generated_tokens)
        if name not in self._watched:
            return Answer(tokens, torch.empty(0, 0))
        # A request that was thrown out of the batch computes some positions twice, the same ones.
        return Answer(tokens, torch.stack([self._seen[name, prompt + i] for i in range(len(tokens))]))


@contextmanager
def session(model: Any, settings: Settings, new_tokens: int, prompts: Sequence[Prompt]) -> Iterator[Session]:
    """A session that has room for `prompts` at once."""
    sampling = dict(settings.sampling)
    generation = GenerationConfig(
        max_new_tokens=new_tokens, eos_token_id=-1, **(sampling or {"do_sample": False}),
    )  # fmt: skip
    manager = model.init_continuous_batching(
        generation_config=generation, continuous_batching_config=_config(settings, new_tokens, prompts)
    )
    recording = Session(manager, new_tokens)
    try:
        if settings.cuda_graphs:
            manager.warmup()
        yield recording
    finally:
        manager.stop(block=True, timeout=_PATIENCE)
        if hasattr(manager, "destroy"):
            manager.destroy()


def _config(settings: Settings, new_tokens: int, prompts: Sequence[Prompt]) -> Any:
    page = settings.page_size
    pages = sum(math.ceil((len(prompt) + new_tokens) / page) + 1 for prompt in prompts)
    fields = {field.name for field in dataclasses.fields(configuration_utils.ContinuousBatchingConfig)}
    size = "page_size" if "page_size" in fields else "block_size"
    options: dict[str, Any] = {
        size: page,
        "num_blocks": settings.num_blocks or 2 * pages + 4,
        "max_batch_tokens": settings.max_batch_tokens or max(64, sum(map(len, prompts)) + 1),
        "max_requests_per_batch": max(8, len(prompts)),
        "allow_block_sharing": settings.sharing,
        "use_async_batching": False,
        "use_cuda_graph": settings.cuda_graphs,
        "auto_switch_to_flash": False,
        "per_request_processors": True,
        "seed": settings.seed,
    }
    if settings.cuts:
        options["scheduler_type"] = _CUTS
        schedulers.SCHEDULER_MAPPING[_CUTS] = _cutting(settings.cuts)
    return configuration_utils.ContinuousBatchingConfig(**{k: v for k, v in options.items() if k in fields})


def _cutting(cuts: tuple[int, ...]) -> type[schedulers.Scheduler]:
    """The scheduler that takes at most cuts[0] tokens in the first step, cuts[1] in the second, ..., and again."""

    class Cutting(schedulers.FIFOScheduler):
        def reset(self) -> None:
            super().reset()
            self.cuts = itertools.cycle(cuts)

        def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
            return super().schedule_batch(min(token_budget, next(self.cuts)), cache_budget)

    return Cutting
