"""Golden cases of sampling: rows with parameters and histories of their own."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import philox, sample

Case = dict[str, Any]
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


def cases() -> Iterator[Case]:
    """Ties, zeros, NaN and infinities, any bit patterns; vocabularies around a chunk of 4096 tokens and a large one."""
    for dtype in ("float32", "bfloat16", "float16"):
        for kind, shape in (
            ("logits", [14, 333]), ("ordinary", [14, 4097]), ("zeros", [7, 500]), ("nonfinite", [14, 700]),
            ("patterns", [14, 300]), ("constant", [7, 129]), ("ties", [14, 1000]), ("logits", [7, 1]),
        ):  # fmt: skip
            yield {"op": "sample", "dtype": dtype, "kind": kind, "shapes": [shape]}
    yield {"op": "sample", "dtype": "bfloat16", "kind": "logits", "shapes": [[7, 49152]]}


def _sample(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    logits, seed = x[0], case["seed"]
    rows, classes = logits.shape
    ids = philox.words(seed, 1, 2 * rows * HISTORY).astype(np.int64).reshape(2, rows, HISTORY) % (classes + 1) - 1
    tokens, raw, processed = [], [], []
    for i, row in enumerate(logits):
        temperature, top_k, top_p, min_p, *penalties = ROWS[i % len(ROWS)]
        y = sample.penalised(row, ids[0, i].tolist(), ids[1, i].tolist(), *penalties)
        token, z = sample.sample(y, temperature, top_k, top_p, min_p, seed + i, 5 * i, i % 3)
        tokens.append(token)
        raw.append(sample.log_probabilities(row)[token])
        processed.append(sample.log_probabilities(z)[token])
    return {
        "tokens": (np.array(tokens, np.int64), "int64"),
        "logprobs": (np.array(raw, np.float32), "float32"),
        "processed": (np.array(processed, np.float32), "float32"),
    }


COMPUTE = {"sample": _sample}
