"""Golden cases of sort and topk, with their gradients."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import inputs, sort

Case = dict[str, Any]


def cases() -> Iterator[Case]:
    """Ties, zeros of both signs, NaN; both directions; all formats. k: of topk."""
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for descending in (False, True):
            for kind, shape, dim in (
                ("ordinary", [3, 20], 1), ("zeros", [20, 3], 0), ("nonfinite", [2, 120], 1), ("subnormal", [20], 0),
                ("constant", [33], 0), ("patterns", [150], 0), ("ties", [2, 60], 1),
            ):  # fmt: skip
                case = {"op": "sort", "dtype": dtype, "kind": kind, "shapes": [shape], "dim": dim}
                yield {**case, "k": None, "descending": descending}
                yield {**case, "k": 5, "descending": descending}


def _sort(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    dim, k = case["dim"], case["k"]
    order = (dim, case["descending"])
    values, indices = sort.sort(x[0], *order) if k is None else sort.topk(x[0], k, *order)
    g = inputs.operand("ordinary", case["dtype"], values.shape, case["seed"], 3)
    grad = sort.gradient(g, indices, dim, x[0].shape[dim])
    return {"values": values, "indices": (indices, "int64"), "grad": grad}


COMPUTE = {"sort": _sort}
