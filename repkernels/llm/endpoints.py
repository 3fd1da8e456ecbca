"""/v1/chat/completions and /v1/completions: OpenAI's answers, whole and in chunks."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

from repkernels.llm import request as requests
from repkernels.llm.engine import Engine, Event, TopLogprobs
from repkernels.llm.errors import RequestError
from repkernels.llm.record import Made, record
from repkernels.llm.request import Request

Json = dict[str, Any]


@dataclass
class Answered:
    """What one of the answers has by now."""

    made: Made = field(default_factory=Made)
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


class Endpoint:
    """How requests are read and answers written."""

    path: ClassVar[str]
    prefix: ClassVar[str]
    whole: ClassVar[str]
    chunk: ClassVar[str]
    parse: Callable[[Any, Any], Request]

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def read(self, body: Any) -> Request:
        """The request, with nothing left open. Raises RequestError."""
        parsed = type(self).parse(body, self.engine.tokenizer)
        asked = body.get("model")
        if asked not in (None, self.engine.name):
            raise RequestError(
                f"The model `{asked}` does not exist; this server has `{self.engine.name}`",
                "model", "model_not_found", 404,
            )  # fmt: skip
        return self.engine.settled(parsed)

    async def respond(self, request: Request) -> Json:
        """The whole response."""
        answers = [Answered() for _ in range(len(request.prompts) * request.n)]
        async with aclosing(self.engine.answer(request)) as events:
            async for event in events:
                self._take(answers[event.answer], event)
        response = {
            **self._head(self.whole),
            "choices": [self.choice(i, answer, request) for i, answer in enumerate(answers)],
            "usage": _usage(request, answers),
        }
        if request.recorded:
            response["repkernels"] = self._record(request, answers)
        return response

    async def stream(self, request: Request) -> AsyncGenerator[Json]:
        """The chunks, the first of them once there is a token."""
        answers = [Answered() for _ in range(len(request.prompts) * request.n)]
        head = self._head(self.chunk)
        if request.usage:
            head["usage"] = None
        async with aclosing(self.engine.answer(request)) as events:
            async for event in events:
                answer = answers[event.answer]
                entry = self._take(answer, event)
                if len(answer.made.tokens) == 1 and (first := self.opening(event.answer)):
                    yield {**head, "choices": [first]}
                if event.text or entry or event.finish:
                    yield {**head, "choices": [self.piece(event.answer, event, answer, entry)]}
        if request.usage:
            yield {**head, "choices": [], "usage": _usage(request, answers)}
        if request.recorded:
            yield {**head, "choices": [], "repkernels": self._record(request, answers)}

    def choice(self, index: int, answer: Answered, request: Request) -> Json:
        """One of the whole response's choices."""
        raise NotImplementedError

    def opening(self, index: int) -> Json | None:
        """What a stream begins an answer with."""
        return None

    def piece(self, index: int, event: Event, answer: Answered, entry: Json | None) -> Json:
        """The choice of one chunk."""
        raise NotImplementedError

    def logprob(self, token: int, found: TopLogprobs) -> Json:
        """How the log-probabilities of a token are written."""
        return {
            **self.named(token, found.chosen),
            "top_logprobs": [self.named(*top) for top in zip(found.tokens, found.values, strict=True)],
        }

    def named(self, token: int, logprob: float) -> Json:
        """A token by its text."""
        text = self.engine.tokenizer.decode([token], clean_up_tokenization_spaces=False)
        # Part of a character is no text.
        data = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": _number(logprob), "bytes": data}

    def _take(self, answer: Answered, event: Event) -> Json | None:
        answer.made.add(event)
        entry = None if event.logprobs is None else self.logprob(event.token, event.logprobs)
        if entry is not None:
            answer.logprobs.append(entry)
            answer.offsets.append(len(answer.text))
        answer.text += event.text
        return entry

    def _head(self, kind: str) -> Json:
        return {
            "id": f"{self.prefix}-{uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.engine.name,
            "system_fingerprint": str(self.engine.fingerprint),
        }

    def _record(self, request: Request, answers: list[Answered]) -> Json:
        return record(self.engine, self.path, request, [answer.made for answer in answers])


class Chat(Endpoint):
    """Chats, through the model's template."""

    path, prefix, whole, chunk = "/v1/chat/completions", "chatcmpl", "chat.completion", "chat.completion.chunk"
    parse = staticmethod(requests.chat)

    def choice(self, index: int, answer: Answered, request: Request) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None if request.top is None else _chat_logprobs(answer.logprobs),
            "finish_reason": answer.made.finish,
        }

    def opening(self, index: int) -> Json | None:
        return _delta(index, {"role": "assistant", "content": ""}, None, None)

    def piece(self, index: int, event: Event, answer: Answered, entry: Json | None) -> Json:
        logprobs = None if entry is None else _chat_logprobs([entry])
        return _delta(index, {"content": event.text} if event.text else {}, logprobs, event.finish)


class Completion(Endpoint):
    """Text as it is, or token ids; several prompts at once."""

    path, prefix, whole, chunk = "/v1/completions", "cmpl", "text_completion", "text_completion"
    parse = staticmethod(requests.completion)

    def choice(self, index: int, answer: Answered, request: Request) -> Json:
        logprobs = None if request.top is None else _completion_logprobs(answer.logprobs, answer.offsets)
        return {"index": index, "text": answer.text, "logprobs": logprobs, "finish_reason": answer.made.finish}

    def piece(self, index: int, event: Event, answer: Answered, entry: Json | None) -> Json:
        logprobs = None if entry is None else _completion_logprobs([entry], answer.offsets[-1:])
        return {"index": index, "text": event.text, "logprobs": logprobs, "finish_reason": event.finish}


def _delta(index: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _chat_logprobs(entries: list[Json]) -> Json:
    return {"content": entries, "refusal": None}


def _completion_logprobs(entries: list[Json], offsets: list[int]) -> Json:
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
        "text_offset": offsets,
    }


def _usage(request: Request, answers: list[Answered]) -> Json:
    prompt, new = sum(map(len, request.prompts)), sum(len(answer.made.tokens) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _number(logprob: float) -> float | None:
    """JSON has no infinity; OpenAI writes -9999. NaN is null."""
    return None if logprob != logprob else max(logprob, -9999.0)
