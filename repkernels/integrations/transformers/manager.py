"""Continuous batching whose answers do not depend on what shares a batch, on its chunks, pages, graphs or timing."""

import copy
import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.initialization import resolve_using_hints, resolve_without_hints
from transformers.generation.continuous_batching.requests import RequestStatus

from repkernels.integrations.transformers import parameters
from repkernels.integrations.transformers.attention import PAGED
from repkernels.integrations.transformers.generation import seeds_for
from repkernels.integrations.transformers.requests import Options, Requests
from repkernels.integrations.transformers.sampler import OnLogits, Sampler


class Manager(ContinuousBatchingManager):
    """transformers' ContinuousBatchingManager with this library's attention, sampling and streams of random numbers.

    It is what `model.init_continuous_batching()` of an enabled model returns; `generate_batch`,
    `continuous_batching_context_manager` and transformers' server make theirs by it too.

    on_logits: None, or called with (request id, position, logits) for every token that is sampled for a request that
        was added with `capture_logits=True`: position 0 is the first generated token, logits are fp32 (V,) on the CPU,
        as the model made them, before penalties and temperature. It runs in the manager's thread, between steps, with
        CUDA graphs too; what it raises is logged. Of a request that ends by a stop token, asynchronous batching samples
        one token more than it returns: ignore positions from `len(output.generated_tokens)` on.
    """

    def __init__(
        self,
        model: Any,
        generation_config: GenerationConfig,
        continuous_batching_config: ContinuousBatchingConfig,
        workload_hints: Any = None,
        on_logits: OnLogits | None = None,
    ) -> None:
        default = parameters.from_config(generation_config)
        _refuse_compiled(model, continuous_batching_config)
        # Sampling is not theirs, and their block tables ask for a package that is not needed.
        greedy, planned = copy.deepcopy(generation_config), copy.deepcopy(continuous_batching_config)
        greedy.do_sample, greedy.repetition_penalty = False, None
        planned.max_blocks_per_request = 0
        super().__init__(model, greedy, planned, workload_hints)
        self.generation_config = generation_config
        self.continuous_batching_config.max_blocks_per_request = _blocks_per_request(
            model, continuous_batching_config, workload_hints
        )
        # It would seed torch's generators, which nothing here draws from.
        vars(self.distributed_helper)["set_tp_seed"] = lambda *_, **__: None
        self.requests = Requests(default)
        self.logit_processor = self.requests
        self.sampler = Sampler(self.requests, on_logits)
        self._adding = threading.Lock()
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def on_logits(self) -> OnLogits | None:
        return self.sampler.on_logits

    @on_logits.setter
    def on_logits(self, function: OnLogits | None) -> None:
        self.sampler.on_logits = function

    def switch_to_cb_friendly_attn(self, model: Any, *_: Any) -> None:
        original = model.config._attn_implementation
        if original != PAGED:
            model.config._attn_implementation = PAGED
            self._original_attn_impl = original

    def _create_batch_processor(self) -> Any:
        fresh = self.batch_processor is None
        processor = super()._create_batch_processor()
        if fresh:
            self.requests.capacity = _capacity(processor.cache, self.continuous_batching_config)
            self.sampler.install(processor, self.model)
            _never_empty(processor.scheduler)
            _finish_cancelled(processor.scheduler)
        return processor

    def add_request(
        self,
        input_ids: Sequence[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        eos_token_id: int | list[int] | None = None,
        *,
        num_return_sequences: int | None = None,
        capture_logits: bool = False,
        **sampling: Any,
    ) -> str | None:
        """Adds a request; its answer is the same in every batch. Returns its id, None while the manager is stopping.

        sampling: `Parameters` by name: temperature (0 is greedy), top_k, top_p, min_p, repetition_penalty,
            frequency_penalty, presence_penalty, seed, do_sample; what is not given is the generation_config's. seed
            None: the configuration's, or else drawn from `repkernels.random`.
        num_return_sequences: answers, the others as requests `{request_id}__child#{i}`, answer i + 1 of the seed.
        capture_logits: whether `on_logits` gets this request's.

        Raises TypeError and ValueError for parameters that are unknown or out of range, and ValueError for a prompt
        that is empty, has ids outside of the vocabulary, or is too long with max_new_tokens for the model or the cache.
        """
        tokens = _checked(input_ids, self.model.config.get_text_config().vocab_size)
        chosen = self.requests.default.with_values(sampling)
        if sampling.get("seed") is None:
            seed = self.continuous_batching_config.seed
            if seed is None:
                seed = parameters.drawn_seed() if chosen.temperature > 0 else 0
            chosen = chosen.with_values({"seed": seed})
        if request_id is None:
            with self._request_lock:
                request_id = f"req_{self._request_counter}"
                self._request_counter += 1
        elif parameters.sample_index(request_id):
            raise ValueError(f"request_id: {request_id!r} is how the answers of another request are named")
        elif self._is_running(request_id):
            raise ValueError(f"request_id: {request_id!r} is running; give each request an id of its own")
        new = self.generation_config.max_new_tokens if max_new_tokens is None else max_new_tokens
        new = self._limited(len(tokens), new)
        answers = self.num_return_sequences if num_return_sequences is None else num_return_sequences
        if answers < 1:
            raise ValueError(f"num_return_sequences: expected at least 1, got {answers}")
        options = Options(chosen, capture_logits, len(tokens) + new)
        self.requests.check_kwargs({"options": options})
        with self._adding:
            default, self.num_return_sequences = self.num_return_sequences, answers
            try:
                added: str | None = super().add_request(
                    tokens, request_id, new, streaming, record_timestamps, eos_token_id, options=options
                )
            finally:
                self.num_return_sequences = default
        return added

    def add_requests(
        self,
        inputs: Sequence[Sequence[int]],
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        *,
        seed: int | Sequence[int] | None = None,
        **options: Any,
    ) -> list[str]:
        """`add_request` for each prompt. seed: of all, or one for each. Returns the ids in the prompts' order."""
        given = seeds_for(len(inputs), seed)
        with self._request_lock:
            ids = [f"req_{self._request_counter + i}" for i in range(len(inputs))]
            self._request_counter += len(inputs)
        order = range(len(inputs))
        # Prompts that begin alike one after the other share more of the cache.
        if self._use_prefix_sharing:
            order = sorted(order, key=lambda i: list(inputs[i]), reverse=True)  # type: ignore[assignment]
        stop = self.generation_config.eos_token_id
        if stop is None:
            stop = self.model.config.eos_token_id
        for i in order:
            self.add_request(
                inputs[i],
                ids[i],
                max_new_tokens,
                streaming,
                record_timestamps,
                -1 if stop is None else stop,
                seed=given[i],
                **options,
            )
        return ids

    def _is_running(self, request_id: str) -> bool:
        waiting = any(state.request_id == request_id for state in list(self.input_queue.queue))
        scheduler = None if self.batch_processor is None else self.batch_processor.scheduler
        return waiting or (
            scheduler is not None
            and (request_id in scheduler.active_requests or request_id in scheduler.waiting_requests)
        )

    def _limited(self, prompt: int, new: int | None) -> int:
        """The number of new tokens: as many as the model has positions for where none is given."""
        if new is not None and new < 1:
            raise ValueError(f"max_new_tokens: expected at least 1, got {new}")
        if self._longest is None:
            if new is None:
                raise ValueError("max_new_tokens: give a number, the model's configuration sets no limit")
            return new
        room = self._longest - prompt
        if room < (new or 1):
            raise ValueError(
                f"input_ids and max_new_tokens: {prompt} + {new or 1} tokens, but the model has {self._longest} "
                "positions"
            )
        return room if new is None else new


def _never_empty(scheduler: Any) -> None:
    """Keeps a request from a step of no tokens, which ends the manager where nothing else is in the step.

    transformers holds the last token of a prompt back until its other answers have been forked. Where that token is all
    that is left, they become requests of their own.
    """
    schedule = scheduler._schedule_request

    def guarded(state: Any, request_tokens: Any, *rest: Any) -> None:
        if state.num_children > 0 and len(request_tokens) == 1:
            children, state.num_children = state.num_children, 0
            for i in range(children):
                child = state.create_equivalent_initial_request()
                child.request_id = f"{state.request_id}__child#{i}"
                scheduler.add_waiting_request(child)
        schedule(state, request_tokens, *rest)

    scheduler._schedule_request = guarded


def _finish_cancelled(scheduler: Any) -> None:
    """Has a step that is still running pass over requests that were cancelled meanwhile.

    With asynchronous batching it would look for their pages, which are no longer theirs, and end the manager.
    """
    clear = scheduler.clear_cancelled_requests

    def cleared() -> list[Any]:
        states: list[Any] = clear()
        for state in states:
            state.status = RequestStatus.FINISHED
        gone = {id(state) for state in states}
        scheduler._requests_to_fork = [state for state in scheduler._requests_to_fork if id(state) not in gone]
        return states

    scheduler.clear_cancelled_requests = cleared


def _checked(input_ids: Sequence[int] | Tensor, vocabulary: int) -> list[int]:
    tokens = input_ids.tolist() if isinstance(input_ids, Tensor) else list(input_ids)
    if not tokens:
        raise ValueError("input_ids: empty; give at least one token")
    if any(isinstance(t, bool) or not isinstance(t, int) for t in tokens):
        raise TypeError("input_ids: expected a list of token ids, all int")
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise ValueError(f"input_ids: expected ids from 0 to {vocabulary - 1}, got {min(tokens)} to {max(tokens)}")
    return tokens


def _blocks_per_request(model: Any, config: ContinuousBatchingConfig, hints: Any) -> int:
    """Pages of a request that a block table can hold; 0 where there is none, as for layers that keep a window only."""
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    sliding = "sliding_attention" in kinds if kinds is not None else getattr(text, "sliding_window", None) is not None
    if sliding:
        return 0
    planned: Any = copy.deepcopy(config)
    resolve_using_hints(planned, hints)
    resolve_without_hints(planned)
    return int(planned.max_blocks_per_request)


def _capacity(cache: Any, config: ContinuousBatchingConfig) -> int:
    """Tokens that a request can have when it is alone."""
    size = getattr(config, "page_size", None) or config.block_size
    return int(cache.num_blocks * size)


def _refuse_compiled(model: Any, config: ContinuousBatchingConfig) -> None:
    compiled = [
        name
        for name in ("varlen_compile_config", "decode_compile_config", "default_compile_level")
        if getattr(config, name, None)
    ]
    if getattr(model.config, "compile_config", None) is not None:
        compiled.append("config.compile_config")
    if compiled:
        raise NotImplementedError(
            f"continuous_batching_config: {', '.join(compiled)}: compiled code rounds in other places than the model; "
            "CUDA graphs (use_cuda_graph) need no compilation"
        )
