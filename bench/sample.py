"""Sampling a token of each row of logits, beside torch's operations as transformers puts them together."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repkernels.sampling import sample as ours

from .registry import Run, Variant, Work, benchmark
from .tensors import normal

TORCH = "torch"
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "top_k, top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "temperature, logprobs": {"temperature": 0.8, "logprobs": 0},
}


@benchmark("sample")
def sample(device: torch.device, quick: bool) -> Iterator[Work]:
    """fp32 logits of a vocabulary of 128256, of one request and of many."""
    classes = 128256 if device.type == "cuda" else 49152
    for name, options in OPTIONS.items():
        for rows in (4,) if quick else (1, 64):
            yield Work(
                name=f"{name} {rows} x {classes}",
                group=name,
                operands=partial(_operands, device, rows, classes),
                variants=[Variant(TORCH, partial(_torch, options)), Variant("repkernels", partial(_ours, options))],
                baseline=TORCH,
                operations=rows * classes,
                traffic=4 * rows * classes,
                sizes={"rows": rows, "classes": classes},
            )


def _operands(device: torch.device, rows: int, classes: int) -> Tensor:
    return normal(device, torch.float32, rows, classes) * 3


def _torch(options: dict[str, Any], logits: Tensor) -> Run:
    """The warpers of transformers in their order, then softmax and multinomial."""

    def run(i: int) -> Any:
        if not options["temperature"]:
            return logits.argmax(-1)
        scores = logits / options["temperature"]
        if "top_k" in options:
            scores = scores.masked_fill(scores < scores.topk(options["top_k"])[0][:, -1:], -torch.inf)
        if "top_p" in options:
            ordered, places = scores.sort(descending=False)
            gone = ordered.softmax(-1).cumsum(-1) <= 1 - options["top_p"]
            gone[:, -1:] = False
            scores = scores.masked_fill(gone.scatter(1, places, gone), -torch.inf)
        if "min_p" in options:
            p = scores.softmax(-1)
            scores = scores.masked_fill(p < options["min_p"] * p.amax(-1, keepdim=True), -torch.inf)
        tokens = torch.multinomial(scores.softmax(-1), 1)
        return (tokens, logits.log_softmax(-1).gather(1, tokens)) if "logprobs" in options else tokens

    return run


def _ours(options: dict[str, Any], logits: Tensor) -> Run:
    rows = torch.arange(len(logits), device=logits.device)
    arguments = {"logprobs": None, **options, "seeds": rows, "positions": rows}
    # As a batch of requests has them: one for each row.
    names = ("temperature", "top_k", "top_p", "min_p")
    arguments |= {n: torch.full_like(rows, options[n], dtype=_kind(n)) for n in names if n in options}
    return lambda i: ours(logits, **arguments)


def _kind(name: str) -> torch.dtype:
    return torch.int64 if name == "top_k" else torch.float32
