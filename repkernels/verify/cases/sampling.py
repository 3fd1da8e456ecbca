"""Sampling: rows with parameters and histories of their own."""

import torch
from torch import Tensor

from repkernels.philox import words
from repkernels.sampling import sample
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand

# By row, in turn: temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty.
ROWS = (
    (0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0),
    (1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0),
    (0.7, 5, 1.0, 0.0, 1.3, 0.0, 0.0),
    (1.3, 0, 0.9, 0.0, 1.0, 0.4, 0.3),
    (0.6, 40, 0.95, 0.05, 1.1, -0.2, 0.5),
    (2.5, 3, 0.5, 0.2, 0.8, 0.0, -1.0),
    (0.05, 0, 0.3, 0.0, 1.0, 0.0, 0.0),
)
HISTORY = 9


def _sample(case: Case, device: torch.device) -> dict[str, Tensor]:
    logits, seed = operand(case, 0, device), case["seed"]
    rows, classes = logits.shape
    drawn = torch.from_numpy(words(seed, 1, 2 * rows * HISTORY).astype("int64"))
    ids = (drawn.view(2, rows, HISTORY) % (classes + 1) - 1).to(device)
    t, k, p, least, repetition, frequency, presence = (
        torch.tensor([ROWS[i % len(ROWS)][column] for i in range(rows)], device=device) for column in range(7)
    )
    i = torch.arange(rows, device=device)
    raw, processed = (
        sample(
            logits, temperature=t, top_k=k, top_p=p, min_p=least, repetition_penalty=repetition,
            frequency_penalty=frequency, presence_penalty=presence, prompt=ids[0], output=ids[1], seeds=seed + i,
            positions=5 * i, samples=i % 3, logprobs_mode=mode,
        )
        for mode in ("raw_logprobs", "processed_logprobs")
    )  # fmt: skip
    assert raw.logprobs is not None and processed.logprobs is not None
    return {"tokens": raw.tokens, "logprobs": raw.logprobs, "processed": processed.logprobs}


COMPUTE = {"sample": _sample}
