"""A model behind continuous batching, answering requests as events: tokens, their text, log-probabilities, digests."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import torch
from torch import Tensor

from repkernels.digest import digest
from repkernels.integrations.transformers import enable
from repkernels.integrations.transformers.parameters import drawn_seed
from repkernels.llm.errors import RequestError
from repkernels.llm.fingerprint import Fingerprint, fingerprint
from repkernels.llm.request import Prompt, Request
from repkernels.llm.text import Text
from repkernels.ops.sort import topk


@dataclasses.dataclass(frozen=True)
class Batching:
    """How much is computed at once. It changes no bit of any answer.

    num_blocks: pages of the cache, of block_size tokens each; None: what the device's memory holds, on a CPU 32768
    tokens. max_batch_tokens, max_requests: of one step; None: transformers' choice. cuda_graphs: None: on a GPU.
    """

    num_blocks: int | None = None
    block_size: int = 64
    max_batch_tokens: int | None = None
    max_requests: int | None = None
    cuda_graphs: bool | None = None

    def config(self, device: torch.device) -> Any:
        """As transformers' ContinuousBatchingConfig."""
        from transformers import ContinuousBatchingConfig

        cpu = device.type == "cpu"
        fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
        size: Any = {"page_size" if "page_size" in fields else "block_size": self.block_size}
        return ContinuousBatchingConfig(
            **size,
            num_blocks=self.num_blocks or (max(1, 32768 // self.block_size) if cpu else None),
            max_batch_tokens=self.max_batch_tokens or (512 if cpu else None),
            max_requests_per_batch=self.max_requests or (64 if cpu else None),
            use_cuda_graph=self.cuda_graphs,
        )


@dataclasses.dataclass(frozen=True)
class TopLogprobs:
    """The token's log-probability, and the likeliest tokens with theirs, from the logits as the model made them."""

    chosen: float
    tokens: list[int]
    values: list[float]


@dataclasses.dataclass(frozen=True)
class Event:
    """One more token of an answer, and the text that can be shown by now.

    answer: its number. row: the digest of the token's logits, fp32 (V,). finish: None, "stop" or "length".
    """

    answer: int
    token: int
    text: str
    logprobs: TopLogprobs | None
    row: str | None
    finish: str | None


class Engine:
    """Answers requests of one model: `start`, `answer` from coroutines of any event loop, `stop`.

    name: what the model is called. contract: of all contractions. The model is enabled and kept.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, contract: str, batching: Batching | None = None) -> None:
        self.model, self.tokenizer, self.name = enable(model, contract), tokenizer, name
        self.fingerprint: Fingerprint = fingerprint(model, contract)
        self.batching = batching or Batching()
        self._manager: Any = None
        self._numbers = itertools.count()
        self._logits: dict[str, dict[int, Tensor]] = {}
        stop = model.generation_config.eos_token_id
        stop = model.config.eos_token_id if stop is None else stop
        self._ends = {stop} if isinstance(stop, int) else set(stop or ())

    def start(self) -> None:
        """Starts the batching, and computes a token, so that a machine that cannot fails now."""
        self._manager = self.model.init_continuous_batching(
            self.model.generation_config, self.batching.config(self.model.device)
        )
        self._manager.on_logits = self._keep
        self._manager.start()
        asyncio.run(self._warm())

    def stop(self) -> None:
        """Ends the batching; requests that run are given up."""
        if self._manager is not None:
            self._manager.stop(block=True, timeout=10)
            self._manager = None

    @property
    def alive(self) -> bool:
        """Whether requests are still answered."""
        return self._manager is not None and self._manager.background_thread_status.fatal_error is None

    def settled(self, request: Request) -> Request:
        """The request with everything said that it leaves open, so that it means the same on another machine.

        Sampling is as the model's generation config has it, the seed is drawn from `repkernels.random`, and answers are
        as long as the longest prompt leaves room for.
        """
        longest = max(map(len, request.prompts))
        defaults = dataclasses.asdict(self._manager.requests.default)
        return dataclasses.replace(
            request,
            sampling={**defaults, **request.sampling, "seed": drawn_seed() if request.seed is None else request.seed},
            limit=max(1, self.longest - longest) if request.limit is None else request.limit,
        )

    async def answer(self, request: Request) -> AsyncGenerator[Event]:
        """The tokens of all answers as they come; answer i of prompt p is number p * n + i.

        Every answer ends with an event that has `finish`. When the iterator is closed early the requests are cancelled.
        Raises RequestError, before any token where the request is at fault.
        """
        outputs: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        answers: dict[int, _Answer] = {}
        try:
            for number, prompt in enumerate(request.prompts):
                self._submit(request, prompt, number * request.n, answers, outputs)
            while any(not answer.finished for answer in answers.values()):
                number, output = await outputs.get()
                answer = answers[number]
                if output.error is not None:
                    raise RequestError(f"the model failed: {output.error}", status=500 if self.alive else 503)
                for token in output.generated_tokens[answer.length :]:
                    if answer.finished:
                        break
                    event = self._event(request, number, answer, token)
                    if answer.finished and not output.is_finished():
                        self._manager.cancel_request(answer.name)
                    yield event
        finally:
            for answer in answers.values():
                if not answer.finished and self._manager is not None:
                    self._manager.cancel_request(answer.name)
                self._forget(answer.name)

    def _submit(
        self, request: Request, prompt: Prompt, first: int, answers: "dict[int, _Answer]", outputs: Any
    ) -> None:
        limit = self._checked(prompt, request.limit or 1)
        name = f"r{next(self._numbers)}"
        captured = request.top is not None or request.recorded
        for i in range(request.n):
            answer = _Answer(name if i == 0 else f"{name}__child#{i - 1}", limit, Text(self.tokenizer, request.stops))
            answers[first + i] = answer
            if captured:
                self._logits[answer.name] = {}
            self._manager.register_result_handler(
                answer.name, lambda output, number=first + i: outputs.put_nowait((number, output))
            )
        ends = sorted(self._ends) if self._ends and not request.ignore_eos else -1
        try:
            added = self._manager.add_request(
                prompt,
                name,
                limit,
                streaming=request.stream or captured or bool(request.stops),
                eos_token_id=ends,
                num_return_sequences=request.n,
                capture_logits=captured,
                **request.sampling,
            )
        except (TypeError, ValueError) as error:
            raise RequestError(str(error)) from error
        if added is None:
            raise RequestError("the server is stopping", status=503)

    def _checked(self, prompt: Prompt, limit: int) -> int:
        """The number of new tokens. Raises RequestError where there is no room for them."""
        vocabulary = self.model.config.get_text_config().vocab_size
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise RequestError(f"prompt: expected ids from 0 to {vocabulary - 1}, got {min(prompt)} to {max(prompt)}")
        if len(prompt) + limit > self.longest:
            raise RequestError(
                f"This model's maximum context length is {self.longest} tokens, but {len(prompt) + limit} were "
                f"requested: {len(prompt)} of the prompt and {limit} of the answer",
                code="context_length_exceeded",
            )
        return limit

    @property
    def longest(self) -> int:
        """Tokens that a request can have: as many as the model has positions for, and the cache holds."""
        capacity = self._manager.requests.capacity
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return min(found for found in (positions, capacity, 1 << 31) if found is not None)

    def _event(self, request: Request, number: int, answer: "_Answer", token: int) -> Event:
        logits = self._logits.get(answer.name, {}).pop(answer.length, None)
        answer.length += 1
        ended = token in self._ends and not request.ignore_eos
        text = answer.text.add(token)
        if ended or answer.text.stopped:
            answer.finish = "stop"
        elif answer.length == answer.limit:
            answer.finish = "length"
        if answer.finished:
            text += answer.text.finish()
        top = None if request.top is None or logits is None else _top(logits, token, request.top)
        row = digest(logits) if request.recorded and logits is not None else None
        return Event(number, token, text, top, row, answer.finish)

    def _keep(self, name: str, position: int, logits: Tensor) -> None:
        """Called in the batching's thread."""
        rows = self._logits.get(name)
        if rows is not None:
            rows[position] = logits

    def _forget(self, name: str) -> None:
        self._logits.pop(name, None)
        if self._manager is not None:
            router = self._manager.output_router
            with router._lock:
                router.result_handlers.pop(name, None)
            # What is delivered from now on is for nobody.
            while not router.output_queue.empty():
                router.output_queue.get_nowait()

    async def _warm(self) -> None:
        request = Request(prompts=[[0]], limit=1, sampling={"temperature": 0.0, "seed": 0})
        async for _ in self.answer(request):
            pass


@dataclasses.dataclass
class _Answer:
    name: str
    limit: int
    text: Text
    length: int = 0
    finish: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish is not None


def _top(logits: Tensor, token: int, count: int) -> TopLogprobs:
    tokens = topk(logits[None], count, 1).indices[0].tolist() if count else []
    chosen = torch.tensor([[token, *tokens]])
    found = torch.ops.repkernels.log_probabilities(logits[None].contiguous(), chosen)[0].tolist()
    return TopLogprobs(found[0], tokens, found[1:])
