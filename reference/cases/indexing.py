"""Golden cases of sums into chosen places, with their gradients."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import grouped_sum, inputs

Case = dict[str, Any]
# P and the number of targets: short groups; groups around the lanes; several blocks.
SIZES = ((60, 37), (700, 13), (2500, 2), (66000, 1))


def cases() -> Iterator[Case]:
    """Groups of all lengths, values that are easily lost, all formats. The index is stream 1 modulo the targets."""

    def case(function: str, dtype: str, kind: str, shapes: list[list[int]], **options: Any) -> Case:
        return {
            "op": "grouped_sum", "dtype": dtype, "kind": kind, "shapes": shapes, "function": function,
            "options": options,
        }  # fmt: skip

    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for positions, targets in SIZES if dtype == "float32" else SIZES[:3]:
            columns = 1 if positions > 60000 else 3
            yield case("embedding", dtype, "ordinary", [[targets, columns], [positions]])
            yield case("index_add", dtype, "spread", [[targets, columns], [positions]], alpha=0.3)
        for kind in ("zeros", "nonfinite", "subnormal", "huge"):
            yield case("embedding", dtype, kind, [[5, 3], [40]], padding_idx=2)
            yield case("index_add", dtype, kind, [[9, 3], [15]], alpha=1)
        yield case("embedding", dtype, "ordinary", [[5, 3], [40]], padding_idx=2, scale_grad_by_freq=True)
        yield case("scatter_add", dtype, "ordinary", [[3, 5], [40, 4]], dim=0)
        yield case("scatter_add", dtype, "spread", [[5, 3], [4, 90]], dim=1)
        yield case("gather", dtype, "ordinary", [[3, 5], [40, 4]], dim=0)
        yield case("bincount", dtype, "ordinary", [[9], [200]])


def _index(case: Case, size: int) -> np.ndarray:
    shape = case["shapes"][1]
    return inputs.targets(size, int(np.prod(shape)), case["seed"], 1).reshape(shape)


def _operand(case: Case, shape: tuple[int, ...], stream: int) -> np.ndarray:
    return inputs.operand(case["kind"], case["dtype"], tuple(shape), case["seed"], stream)


def _embedding(case: Case, x: list[np.ndarray], dtype: str) -> dict[str, Any]:
    targets, columns = case["shapes"][0]
    index, options = _index(case, targets), case["options"]
    g = _operand(case, (len(index), columns), 3)
    by_freq = options.get("scale_grad_by_freq", False)
    grad = grouped_sum.embedding_gradient(g, index, targets, dtype, options.get("padding_idx"), by_freq)
    return {"grad": grad} if len(index) > 100 else {"out": x[0][index], "grad": grad}


def _index_add(case: Case, x: list[np.ndarray], dtype: str) -> dict[str, Any]:
    targets, columns = case["shapes"][0]
    index = _index(case, targets)
    source = _operand(case, (len(index), columns), 3)
    return {"out": grouped_sum.index_add(x[0], 0, index, source, dtype, case["options"]["alpha"])}


def _scatter_add(case: Case, x: list[np.ndarray], dtype: str) -> dict[str, Any]:
    dim = case["options"]["dim"]
    index = _index(case, x[0].shape[dim])
    return {"out": grouped_sum.scatter_add(x[0], dim, index, _operand(case, index.shape, 3), dtype)}


def _gather(case: Case, x: list[np.ndarray], dtype: str) -> dict[str, Any]:
    dim = case["options"]["dim"]
    index = _index(case, x[0].shape[dim])
    g = _operand(case, index.shape, 3)
    return {
        "out": np.take_along_axis(x[0][:, : index.shape[1]], index, dim),
        "grad": grouped_sum.scatter_sum(g, dim, index, x[0].shape, dtype),
    }


def _bincount(case: Case, x: list[np.ndarray], dtype: str) -> dict[str, Any]:
    index = _index(case, case["shapes"][0][0])
    result = "float32" if dtype == "float32" else "float64"
    return {"out": (grouped_sum.bincount(index, _operand(case, index.shape, 3), result, 12), result)}


FUNCTIONS = {
    "embedding": _embedding, "index_add": _index_add, "scatter_add": _scatter_add, "gather": _gather,
    "bincount": _bincount,
}  # fmt: skip
COMPUTE = {"grouped_sum": lambda case, x: FUNCTIONS[case["function"]](case, x, case["dtype"])}
