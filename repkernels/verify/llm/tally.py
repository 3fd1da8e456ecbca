"""How many distinct answers a check saw, and how many logits had other bits than the first one's."""

import dataclasses
from typing import Any

import torch

from repkernels.digest import digest
from repkernels.verify.llm.batching import Answer


@dataclasses.dataclass
class Tally:
    """The outcome of one check: `add` every answer, the one to compare with first."""

    check: str
    runs: int = 0
    differing: int = 0
    compared: int = 0
    largest: float = 0.0
    first: str = ""
    seconds: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:
        self._wanted: Answer | None = None
        self._tokens: set[tuple[Any, ...]] = set()
        self._logits: set[str] = set()

    def add(self, answer: Answer, what: str) -> None:
        """Counts an answer; `what` says how it came about. Logits are compared as far as the tokens before agree."""
        if self._wanted is None:
            self._wanted = answer
        wanted = self._wanted
        self.runs += 1
        self._tokens.add(answer.tokens)
        alike = 0
        while alike < min(len(answer.tokens), len(wanted.tokens)) and answer.tokens[alike] == wanted.tokens[alike]:
            alike += 1
        n = min(alike + 1, len(answer.logits), len(wanted.logits))
        one, other = answer.logits[:n], wanted.logits[:n]
        different = _bits(one) != _bits(other)
        count = int(different.sum())
        self.differing += count
        self.compared += one.numel()
        self._logits.add(digest([answer.logits, *answer.rows]))
        if count:
            self.largest = max(self.largest, float((one - other)[different].abs().nan_to_num(nan=torch.inf).max()))
        if (count or (answer.tokens, answer.rows) != (wanted.tokens, wanted.rows)) and not self.first:
            self.first = what

    @property
    def answers(self) -> int:
        """Distinct sequences of tokens."""
        return len(self._tokens)

    @property
    def logits(self) -> int:
        """Distinct sequences of logits."""
        return len(self._logits)

    @property
    def passed(self) -> bool:
        """Whether there was one answer, to the bit."""
        return not self.error and self.answers <= 1 and self.logits <= 1 and not self.differing

    def as_json(self) -> dict[str, Any]:
        """All counts."""
        counts = {"answers": self.answers, "distinct_logits": self.logits, "passed": self.passed}
        return {**dataclasses.asdict(self), **counts, "seconds": round(self.seconds, 3)}


def _bits(x: torch.Tensor) -> torch.Tensor:
    """fp32 as integers, every NaN as one."""
    return torch.where(x.isnan(), torch.full_like(x, torch.nan), x).view(torch.int32)
