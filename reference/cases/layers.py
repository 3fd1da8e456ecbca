"""Golden cases of recurrent layers.

x 0, h 1, c 2 (lstm), then w_ih, w_hh, b_ih, b_hh and w_hr as operands 3 and following, all of kind ordinary
and divided by 4; the gradients of y, h_n and c_n are operands 10, 11, 12.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import formats, inputs, recurrent

Case = dict[str, Any]
GRADIENT = {"ordered": "ordered", "fixed16": "fixed24", "fixed24": "fixed32"}
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
BATCH_SIZES = [4, 3, 3, 1]


def cases() -> Iterator[Case]:
    """Each kind of step, both directions, a projection, sequences of several lengths."""
    for dtype, contract in (
        ("float32", "fixed24"), ("float32", "ordered"), ("bfloat16", "fixed16"), ("float16", "fixed16"),
    ):  # fmt: skip
        for mode in GATES:
            yield _recurrent(dtype, contract, mode, 6, 5, mode in ("gru", "relu"))
        yield _recurrent(dtype, contract, "lstm", 6, 5, True, projected=3)


def _recurrent(dtype: str, contract: str, mode: str, size: int, hidden: int, reverse: bool, projected: int = 0) -> Case:
    out, width = projected or hidden, GATES[mode] * hidden
    shapes = [[sum(BATCH_SIZES), size], [BATCH_SIZES[0], out], [BATCH_SIZES[0], hidden], [width, size], [width, out]]
    shapes += [[width], [width]] + ([[projected, hidden]] if projected else [])
    options = {"mode": mode, "reverse": reverse}
    return {
        "op": "recurrent", "contract": contract, "dtype": dtype, "kind": "ordinary", "shapes": shapes,
        "options": options,
    }  # fmt: skip


def _operand(case: Case, shape: tuple[int, ...], stream: int) -> np.ndarray:
    return inputs.operand(case["kind"], case["dtype"], shape, case["seed"], stream)


def _compute_recurrent(case: Case, operands: list[np.ndarray]) -> dict[str, np.ndarray]:
    dtype, contract, mode = case["dtype"], case["contract"], case["options"]["mode"]
    x, h, c, *rest = (formats.rounded(v / np.float32(4), dtype) for v in operands)
    w, cell = recurrent.Weights(*rest), c if mode == "lstm" else None
    run = recurrent.forward(mode, x, BATCH_SIZES, h, cell, w, case["options"]["reverse"], dtype, contract)
    upstream = [_operand(case, v.shape, 10 + k) for k, v in enumerate((run.y, h, c))]
    grads = recurrent.backward(
        mode, upstream[0], upstream[1], upstream[2] if mode == "lstm" else None, x, BATCH_SIZES, run, w, dtype,
        GRADIENT[contract],
    )  # fmt: skip
    results = {"y": run.y, "h_n": run.h} | ({} if run.c is None else {"c_n": run.c})
    return results | {f"grad_{name}": v for name, v in grads.items()}


COMPUTE = {"recurrent": _compute_recurrent}
