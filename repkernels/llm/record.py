"""What an answer was made of and from: enough to make it again elsewhere, and to see whether it came out the same.

    {"format": 1, "fingerprint": {"numerics", "contract", "weights"}, "model", "dtype", "endpoint",
     "request": the body, with all that it leaves open, "prompts": token ids,
     "answers": [{"tokens": ids, "finish": "stop" or "length",
                  "digests": {"tokens", "logits", "rows": [one for each token]}}], "machine": {...}}

Digests are those of SPEC.md: of the tokens as int64 (n,), of each token's row of logits as the model made it, fp32 (V,)
in the shape of the vocabulary, and of the list of these rows.
"""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from repkernels.digest import digest
from repkernels.llm.engine import Engine, Event
from repkernels.llm.request import Request

FORMAT = 1


@dataclass
class Made:
    """An answer in the making."""

    tokens: list[int] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    finish: str | None = None

    def add(self, event: Event) -> None:
        self.tokens.append(event.token)
        self.finish = event.finish
        if event.row is not None:
            self.rows.append(event.row)

    def as_json(self) -> dict[str, Any]:
        digests = {"tokens": digest(torch.tensor(self.tokens)), "logits": of_rows(self.rows), "rows": self.rows}
        return {"tokens": self.tokens, "finish": self.finish, "digests": digests}


def of_rows(rows: Sequence[str]) -> str:
    """The digest of a list whose items have these digests."""
    hashed = hashlib.sha256(b"list\0")
    for i, row in enumerate(rows):
        hashed.update(repr(i).encode() + b"\0" + row.encode())
    return hashed.hexdigest()


def record(engine: Engine, endpoint: str, request: Request, answers: Sequence[Made]) -> dict[str, Any]:
    """The record of finished answers."""
    body = {k: v for k, v in request.body.items() if v is not None and k not in ("stream", "stream_options")}
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return {
        "format": FORMAT,
        "fingerprint": engine.fingerprint._asdict(),
        "model": engine.name,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "endpoint": endpoint,
        "request": {**body, **request.sampling, limit: request.limit},
        "prompts": request.prompts,
        "answers": [answer.as_json() for answer in answers],
        "machine": _machine(engine.model.device),
    }


def differences(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """What differs first in each answer of two records of one request; empty where every bit is the same."""
    if found["prompts"] != recorded["prompts"]:
        return ["prompts: the request has other tokens here: another tokenizer or chat template"]
    mine, theirs = found["answers"], recorded["answers"]
    if len(mine) != len(theirs):
        return [f"answers: {len(mine)} here, {len(theirs)} recorded"]
    lines = [_difference(*pair) for pair in zip(mine, theirs, strict=True)]
    return [f"answer {i}: {line}" for i, line in enumerate(lines) if line]


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    rows = mine["digests"]["rows"], theirs["digests"]["rows"]
    # Logits come before the token that is taken from them.
    for at, (a, b) in enumerate(zip(*rows, strict=False)):
        if a != b:
            return f"the logits of token {at} differ: {a} here, {b} recorded"
        token, other = mine["tokens"][at], theirs["tokens"][at]
        if token != other:
            return f"token {at} is {token} here, {other} recorded, from the same logits"
    if mine["tokens"] != theirs["tokens"]:
        return f"{len(mine['tokens'])} tokens here, {len(theirs['tokens'])} recorded, the first of them the same"
    same = all(mine["digests"][name] == theirs["digests"][name] for name in ("tokens", "logits"))
    return "" if same else "the recorded digests are not those of the recorded tokens and rows"


def _machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "torch": torch.__version__, "transformers": transformers.__version__}
