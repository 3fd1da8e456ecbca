"""What must not change one request's answer. Each check asks for the needle in several ways and tallies its answers."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from repkernels.verify.llm.batching import Answer, Prompt, Settings, session
from repkernels.verify.llm.tally import Tally


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is tried."""

    needle: int = 100
    new_tokens: int = 24
    neighbours: tuple[int, ...] = (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128)
    positions: int = 129
    lengths: tuple[int, ...] = tuple(n + d for n in (8, 16, 64, 128, 256) for d in (-1, 0, 1))
    chunks: tuple[int, ...] = (1, 7, 8, 16, 33, 64, 100)
    cuts: tuple[tuple[int, ...], ...] = ((1, 2, 3, 5), (64, 1), (17,), (31, 33, 1, 1, 1), (99, 1))
    pages: tuple[int, ...] = (4, 16, 32, 64, 128, 256)
    repeats: int = 1000
    samples: int = 8


QUICK = Sizes(
    needle=21, new_tokens=3, neighbours=(2,), positions=3, lengths=(7, 9), chunks=(5,), cuts=((1, 4, 2),),
    pages=(4, 32), repeats=2, samples=3,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with the prompts that it is asked: `prompt(length, number)` gives token ids, others for each number."""

    model: Any
    prompt: Callable[[int, int], Prompt]
    sizes: Sizes

    @property
    def needle(self) -> Prompt:
        """The prompt whose answers are compared."""
        return self.prompt(self.sizes.needle, 0)

    def ask(self, prompts: Sequence[Prompt], at: int, settings: Settings | None = None, new: int = 0) -> Answer:
        """The answer to prompts[at], asked beside the others in a batch of its own."""
        new = new or self.sizes.new_tokens
        with session(self.model, settings or Settings(), new, prompts) as s:
            return s.answers(prompts, [at])[at]

    def alone(self, settings: Settings | None = None) -> Answer:
        """The needle's answer when nothing else is asked."""
        return self.ask([self.needle], 0, settings)

    def others(self, count: int, length: int = 0) -> list[Prompt]:
        """Neighbours, of `length` or of different lengths."""
        return [self.prompt(length or 3 + 37 * i % 150, i + 1) for i in range(count)]


Answers = Iterator[tuple[str, Answer]]


def neighbours(subject: Subject) -> Answers:
    """The needle alone, and at places of the queue among others."""
    for count in subject.sizes.neighbours:
        others = subject.others(count)
        places = min(subject.sizes.positions, count + 1)
        for at in sorted({round(i * count / max(places - 1, 1)) for i in range(places)}):
            yield f"place {at} among {count}", subject.ask([*others[:at], subject.needle, *others[at:]], at)


def lengths(subject: Subject) -> Answers:
    """Neighbours whose prompts are just shorter or longer than sizes at which kernels like to change."""
    for length in subject.sizes.lengths:
        yield f"beside a prompt of {length}", subject.ask([subject.needle, *subject.others(1, length)], 0)
        yield f"behind three prompts of {length}", subject.ask([*subject.others(3, length), subject.needle], 3)


def chunks(subject: Subject) -> Answers:
    """Prefill cut into chunks: by the tokens that a batch may have, and anywhere by the scheduler."""
    for chunk in subject.sizes.chunks:
        prompts = [*subject.others(2), subject.needle]
        yield f"batches of {chunk} tokens", subject.alone(Settings(max_batch_tokens=chunk))
        if chunk > len(prompts):
            yield (
                f"batches of {chunk} tokens, three requests",
                subject.ask(prompts, 2, Settings(max_batch_tokens=chunk)),
            )
    for cuts in subject.sizes.cuts:
        yield f"cuts {cuts}", subject.alone(Settings(cuts=cuts))
        yield f"cuts {cuts}, three requests", subject.ask([*subject.others(2), subject.needle], 2, Settings(cuts=cuts))


def prefix_cache(subject: Subject) -> Answers:
    """A prompt whose beginning is in the cache already, wholly or in part."""
    needle, new = subject.needle, subject.sizes.new_tokens
    longer = [*needle, *subject.prompt(9, 1)]
    half = [*needle[: len(needle) // 2], *subject.prompt(20, 2)]
    with session(subject.model, Settings(page_size=4), new, [needle, longer, half, needle]) as s:
        yield "cold", s.answers([needle])[0]
        yield "warm", s.answers([needle])[0]
    for what, first in (("behind a longer prompt", longer), ("behind half of it", half)):
        with session(subject.model, Settings(page_size=4), new, [needle, longer, half, needle]) as s:
            s.answers([first], [])
            yield what, s.answers([needle])[0]
    yield "without sharing", subject.alone(Settings(page_size=4, sharing=False))


def pages(subject: Subject) -> Answers:
    """Sizes of the cache's pages."""
    for page in subject.sizes.pages:
        yield f"pages of {page}", subject.alone(Settings(page_size=page))
        yield (
            f"pages of {page}, three requests",
            subject.ask([*subject.others(2), subject.needle], 2, Settings(page_size=page)),
        )


def preemption(subject: Subject) -> Answers:
    """A cache too small for all, so that requests lose their pages and are computed again."""
    new = max(subject.sizes.new_tokens, 12)
    prompts = [subject.prompt(subject.sizes.needle, i) for i in range(4)]
    needed = -(-(subject.sizes.needle + new) // 4) + 1
    for at in (0, 3):
        order = prompts[1 : at + 1] + prompts[:1] + prompts[at + 1 :]
        settings = Settings(page_size=4, num_blocks=2 * needed + 2, sharing=False)
        found = subject.ask(order, at, settings, new)
        n = subject.sizes.new_tokens
        yield f"place {at} of 4", Answer(found.tokens[:n], found.logits[:n])


def repeats(subject: Subject) -> Answers:
    """The needle again and again in one session, among changing neighbours."""
    prompts = [subject.needle, *subject.others(3)]
    with session(subject.model, Settings(), subject.sizes.new_tokens, prompts) as s:
        for i in range(subject.sizes.repeats):
            beside = prompts[1 : 1 + i % 4]
            yield f"repeat {i}", s.answers([*beside, subject.needle], [len(beside)])[-1]


def samples(subject: Subject) -> Answers:
    """n answers of one seed, again and beside others; they must differ among themselves."""
    count, new = subject.sizes.samples, subject.sizes.new_tokens
    sampling = (("do_sample", True), ("num_return_sequences", count))
    prompts = [subject.needle] * count + subject.others(2)
    for run, beside in enumerate((0, 0, 2)):
        with session(subject.model, Settings(sampling=sampling, seed=7), new, prompts) as s:
            found = s.samples([*subject.others(beside), subject.needle], count)
        if len({answer.tokens for answer in found}) < 2:
            raise RuntimeError(f"{count} samples of one request are one and the same")
        tokens = tuple(token for answer in found for token in answer.tokens)
        yield f"run {run}, {beside} neighbours", Answer(tokens, torch.cat([answer.logits for answer in found]))


def graphs(subject: Subject) -> Answers:
    """CUDA graphs, whose batches are padded."""
    for count in (0, 1, 5):
        others = subject.others(count)
        prompts = [*others, subject.needle]
        yield f"graphs, {count} neighbours", subject.ask(prompts, count, Settings(cuda_graphs=True))
        yield f"no graphs, {count} neighbours", subject.ask(prompts, count)


def generate(subject: Subject) -> Answers:
    """`model.generate`: alone, and padded on the left beside longer prompts."""
    needle, new = list(subject.needle), subject.sizes.new_tokens
    yield "alone", _generated(subject.model, [needle], new)[0]
    longer = [list(subject.prompt(len(needle) + extra, extra)) for extra in (5, 40)]
    yield "padded on the left", _generated(subject.model, [longer[0], needle, longer[1]], new)[1]


def _generated(model: Any, prompts: Sequence[Sequence[int]], new: int) -> list[Answer]:
    width = max(map(len, prompts))
    pads = [width - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)])
    found = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=new, min_new_tokens=new,
        do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    logits = torch.stack(found.logits, 1).float().cpu()
    return [Answer(tuple(row[width:].tolist()), x) for row, x in zip(found.sequences, logits, strict=True)]


def prefill(subject: Subject) -> Answers:
    """The logits of each decoding step against those of a prompt that holds the tokens so far."""
    whole = subject.alone()
    n = len(whole.tokens)
    for k in sorted({1, 2, n // 2, n - 1} - {0, n}):
        found = subject.ask([[*subject.needle, *whole.tokens[:k]]], 0, None, n - k)
        logits = torch.cat([whole.logits[:k], found.logits])
        yield f"{k} tokens as prompt", Answer((*whole.tokens[:k], *found.tokens), logits)


CHECKS: dict[str, Callable[[Subject], Answers]] = {
    "neighbours": neighbours,
    "lengths": lengths,
    "chunks": chunks,
    "prefix-cache": prefix_cache,
    "pages": pages,
    "preemption": preemption,
    "decode-prefill": prefill,
    "repeats": repeats,
    "generate": generate,
    "samples": samples,
    "cuda-graphs": graphs,
}
# These compare with their own first answer, the others with the needle's when it is asked alone.
OWN = ("samples",)


def run(subject: Subject, names: Sequence[str]) -> Iterator[Tally]:
    """The outcomes of checks, each compared with the needle's answer alone."""
    yield from tallied(subject, {name: CHECKS[name] for name in names}, OWN, subject.alone)


def tallied(
    subject: Any, checks: Mapping[str, Callable[[Any], Answers]], own: Sequence[str], alone: Callable[[], Answer]
) -> Iterator[Tally]:
    """The outcomes of checks of a subject: all but `own` compare with the answer alone. One that raises has failed."""
    wanted = None
    for name, check in checks.items():
        tally, start = Tally(name), time.perf_counter()
        try:
            if name not in own:
                wanted = wanted or alone()
                tally.add(wanted, "alone")
            for what, answer in check(subject):
                tally.add(answer, what)
        except Exception as error:  # a check that cannot run is no check that holds
            tally.error = f"{type(error).__name__}: {error}"
        tally.seconds = time.perf_counter() - start
        yield tally
