"""The same checks against a server of OpenAI's form: chat completions by OpenAI's own client."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from repkernels.verify.llm.batching import Answer
from repkernels.verify.llm.checks import Answers, Sizes, tallied
from repkernels.verify.llm.prompts import text
from repkernels.verify.llm.tally import Tally

QUESTION = "Explain in two sentences why the sky is blue."
TOP = 5


@dataclasses.dataclass(frozen=True)
class Server:
    """Where and what is asked. model: the first that the server lists, without a name. digests: whether the server
    gives digests of all logits, as `repkernels serve` does."""

    url: str
    sizes: Sizes
    model: str = ""
    digests: bool = False

    def client(self) -> Any:
        """OpenAI's client. Raises ImportError with what to install."""
        try:
            from openai import OpenAI
        except ImportError:
            raise ImportError("--server needs OpenAI's client: pip install openai") from None
        url = self.url.rstrip("/")
        return OpenAI(base_url=url if url.endswith("/v1") else url + "/v1", api_key="none", max_retries=0)

    def named(self) -> "Server":
        """With the model's name, and whether there are digests.

        Raises ValueError if the server has no such model, and what OpenAI's client raises.
        """
        found = {model.id: model.owned_by for model in self.client().models.list()}
        name = self.model or next(iter(found), "")
        if name not in found:
            raise ValueError(f"model: the server has {', '.join(found) or 'none'}, not {name!r}")
        return dataclasses.replace(self, model=name, digests=found[name] == "repkernels")

    def ask(self, question: str, new: int = 0, **options: Any) -> Answer:
        """The answer to one question, greedy unless options say otherwise; all n choices one after another."""
        found = self.client().chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": question}], max_tokens=new or self.sizes.new_tokens,
            logprobs=True, top_logprobs=TOP, extra_body={"repkernels": {"digest": True}} if self.digests else None,
            **{"temperature": 0, "seed": 0, **options},
        )  # fmt: skip
        answer = _joined([_answer(choice) for choice in found.choices])
        if not self.digests:
            return answer
        rows = [row for one in found.model_extra["repkernels"]["answers"] for row in one["digests"]["rows"]]
        return dataclasses.replace(answer, rows=tuple(rows))

    def stream(self, question: str, stop_after: int = -1) -> str:
        """The text of a streamed answer; stop_after: leave after so many pieces."""
        pieces: list[str] = []
        stream = self.client().chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": question}], max_tokens=self.sizes.new_tokens,
            temperature=0, seed=0, stream=True,
        )  # fmt: skip
        with stream:
            for event in stream:
                if len(pieces) == stop_after:
                    break
                pieces += [choice.delta.content or "" for choice in event.choices]
        return "".join(pieces)

    def among(self, others: Sequence[Callable[[], Any]], at: int, question: str = QUESTION) -> Answer:
        """The answer to `question`, sent as number `at` beside others."""
        with ThreadPoolExecutor(len(others) + 1) as pool:
            before = [pool.submit(other) for other in others[:at]]
            needle = pool.submit(self.ask, question)
            after = [pool.submit(other) for other in others[at:]]
            for future in (*before, *after):
                future.result()
            return needle.result()

    def others(self, count: int, words: int = 0) -> list[Callable[[], Any]]:
        """Other questions, with passages of `words` words or of different lengths."""
        passage = text().split()

        def question(i: int) -> Callable[[], Any]:
            length = words or 3 + 37 * i % 150
            return lambda: self.ask(f"Number {i}. " + " ".join(passage[50 * i : 50 * i + length]), 1 + i % 9)

        return [question(i) for i in range(count)]


def _answer(choice: Any) -> Answer:
    content = None if choice.logprobs is None else choice.logprobs.content
    if not content:
        return Answer((choice.message.content,), torch.empty(0, 0))
    rows = [[token.logprob, *(top.logprob for top in token.top_logprobs)] for token in content]
    wide = max(map(len, rows))
    logprobs = torch.tensor([row + [0.0] * (wide - len(row)) for row in rows], dtype=torch.float64)
    names = tuple(" ".join([token.token, *(top.token for top in token.top_logprobs)]) for token in content)
    return Answer(names, logprobs.float())


def _joined(answers: list[Answer]) -> Answer:
    logits = torch.cat([a.logits for a in answers])
    return Answer(tuple(token for a in answers for token in a.tokens), logits)


def neighbours(server: Server) -> Answers:
    """The question alone, and as one of several at once."""
    for count in server.sizes.neighbours:
        for at in sorted({0, count // 2, count}):
            yield f"number {at} among {count}", server.among(server.others(count), at)


def lengths(server: Server) -> Answers:
    """Beside questions of different lengths."""
    for words in server.sizes.lengths:
        yield f"beside {words} words", server.among(server.others(2, words), 1)


def prefix_cache(server: Server) -> Answers:
    """After the same question, and after ones that begin or go on like it."""
    server.ask(QUESTION + " Use short words.", 1)
    yield "behind a longer question", server.ask(QUESTION)
    server.ask(QUESTION[:25], 1)
    yield "behind half of it", server.ask(QUESTION)
    yield "warm", server.ask(QUESTION)


def repeats(server: Server) -> Answers:
    """Again and again."""
    for i in range(server.sizes.repeats):
        yield f"repeat {i}", server.ask(QUESTION)


def cancelled(server: Server) -> Answers:
    """Beside streamed requests that go away in the midst of their answers."""
    for count in (1, 3):
        leaving = [lambda i=i: server.stream(f"Count to {i + 40}.", 2) for i in range(count)]
        yield f"{count} cancelled", server.among(leaving, count)


def samples(server: Server) -> Answers:
    """n answers of one seed: again, and among others; they must differ among themselves."""
    options: dict[str, Any] = {"n": server.sizes.samples, "temperature": 1.0, "seed": 7}
    first = server.ask(QUESTION, **options)
    per = len(first.tokens) // server.sizes.samples
    each = {first.tokens[i * per : (i + 1) * per] for i in range(server.sizes.samples)}
    if len(each) < 2:
        raise RuntimeError(f"{server.sizes.samples} samples of one request are one and the same")
    yield "first", first
    yield "again", server.ask(QUESTION, **options)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(other) for other in server.others(3)]
        yield "among others", server.ask(QUESTION, **options)
        for other in others:
            other.result()


def streamed(server: Server) -> Answers:
    """Streamed pieces, alone and beside others."""
    yield "alone", Answer((server.stream(QUESTION),), torch.empty(0, 0))
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(other) for other in server.others(3)]
        yield "among others", Answer((server.stream(QUESTION),), torch.empty(0, 0))
        for other in others:
            other.result()


CHECKS: dict[str, Callable[[Server], Answers]] = {
    "neighbours": neighbours,
    "lengths": lengths,
    "prefix-cache": prefix_cache,
    "repeats": repeats,
    "cancelled": cancelled,
    "streaming": streamed,
    "samples": samples,
}
# These compare with their own first answer, the others with the question asked alone.
OWN = ("samples", "streaming")


def run(server: Server, names: Sequence[str]) -> Iterator[Tally]:
    """The outcomes of checks, each compared with the question asked alone."""
    yield from tallied(server, {name: CHECKS[name] for name in names}, OWN, lambda: server.ask(QUESTION))
