"""Golden cases of draws, after `manual_seed(seed)`, and of dropout: x 0, the result's gradient 3."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import dropout, formats, init, inputs, philox, random

Case = dict[str, Any]
FLOATS = ("float32", "bfloat16", "float16", "float64")
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def cases() -> Iterator[Case]:
    """Every draw, in every format, with numbers of elements around the words of a block."""
    for dtype in FLOATS:
        for shape, low, high in (([301], 0.0, 1.0), ([7, 11], -0.3, 0.9), ([0], 0.0, 1.0), ([5], 0.0, 1e-38)):
            yield {"op": "uniform", "dtype": dtype, "shapes": [shape], "options": {"low": low, "high": high}}
        for shape, mean, std in (([301], 0.0, 1.0), ([7, 11], 0.5, 0.02), ([0], 0.0, 1.0), ([1], 3.0, 0.0)):
            yield {"op": "normal", "dtype": dtype, "shapes": [shape], "options": {"mean": mean, "std": std}}
        yield {"op": "bernoulli", "dtype": dtype, "shapes": [[301]], "options": {"p": 0.3}}
        yield {"op": "trunc_normal", "dtype": dtype, "shapes": [[20, 15]], "options": {"std": 1.0, "a": -1.0, "b": 0.5}}
        yield {"op": "orthogonal", "dtype": dtype, "shapes": [[6, 4, 3]], "options": {"gain": 1.5}}
        yield {"op": "orthogonal", "dtype": dtype, "shapes": [[30, 7]], "options": {"gain": 1.0}}
        yield {"op": "sparse", "dtype": dtype, "shapes": [[20, 9]], "options": {"sparsity": 0.3}}
        for function in DROPOUTS:
            shape = {"dropout2d": [3, 5, 7, 2], "dropout3d": [3, 5, 7, 1, 2]}.get(function, [3, 5, 7])
            for p in (0.1, 0.5):
                options = {"function": function, "p": p}
                yield {"op": "dropout", "dtype": dtype, "kind": "ordinary", "shapes": [shape], "options": options}
        for kind, p in (("nonfinite", 0.3), ("zeros", 0.3), ("subnormal", 0.3), ("ordinary", 0.0), ("ordinary", 1.0)):
            options = {"function": "dropout", "p": p}
            yield {"op": "dropout", "dtype": dtype, "kind": kind, "shapes": [[9, 31]], "options": options}
    for low, high in ((0, 6), (-5, 1000), (0, 2**40 + 1), (-(2**63), 2**63 - 1)):
        yield {"op": "randint", "dtype": "int64", "shapes": [[101]], "options": {"low": low, "high": high}}
    for replacement in (True, False):
        for kind, shape, n in (("ordinary", [3, 20], 9), ("spread", [2, 50], 20), ("ordinary", [1, 1000], 500)):
            options = {"n": n, "replacement": replacement}
            yield {"op": "multinomial", "dtype": "float32", "kind": kind, "shapes": [shape], "options": options}
    # Digests alone: many programs and threads.
    yield {"op": "uniform", "dtype": "float32", "shapes": [[1000003]], "options": {"low": 0.0, "high": 1.0}}
    yield {"op": "normal", "dtype": "float32", "shapes": [[20001]], "options": {"mean": 0.0, "std": 1.0}}


def _drawn(case: Case, values: np.ndarray) -> dict[str, np.ndarray]:
    return {"out": formats.rounded(values.reshape(case["shapes"][0]), case["dtype"])}


def _count(case: Case) -> int:
    return math.prod(case["shapes"][0])


def _uniform(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return _drawn(case, philox.uniform(case["seed"], 0, _count(case), **case["options"]))


def _normal(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return _drawn(case, random.normal(case["seed"], 0, _count(case), **case["options"]))


def _bernoulli(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return _drawn(case, random.bernoulli(case["seed"], 0, _count(case), case["options"]["p"]).astype(np.float32))


def _trunc_normal(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    std, low, high = (case["options"][key] for key in ("std", "a", "b"))
    return _drawn(case, init.trunc_normal(tuple(case["shapes"][0]), case["seed"], 0, 0.0, std, low, high))


def _orthogonal(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    shape = tuple(case["shapes"][0])
    return {"out": init.orthogonal(shape, case["seed"], 0, case["options"]["gain"], case["dtype"])}


def _sparse(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    rows, columns = case["shapes"][0]
    return _drawn(case, init.sparse((rows, columns), case["seed"], 0, case["options"]["sparsity"], 0.01))


def _randint(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": random.randint(case["seed"], 0, _count(case), **case["options"])}


def _multinomial(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    options = case["options"]
    drawn = random.multinomial(case["seed"], 0, np.abs(x[0]), options["n"], options["replacement"])
    return {"out": (drawn, "int64")}


def _dropout(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    function, p = case["options"]["function"], case["options"]["p"]
    alpha = "alpha" in function
    inner = math.prod(case["shapes"][0][2:]) if function not in ("dropout", "alpha_dropout") else 1
    grad = inputs.operand("ordinary", case["dtype"], x[0].shape, case["seed"], 3)
    arguments = (case["seed"], 0, p, case["dtype"], alpha, inner)
    return {"out": dropout.forward(x[0], *arguments), "grad": dropout.backward(grad, *arguments)}


COMPUTE = {
    "uniform": _uniform, "normal": _normal, "bernoulli": _bernoulli, "trunc_normal": _trunc_normal,
    "orthogonal": _orthogonal, "sparse": _sparse, "randint": _randint, "multinomial": _multinomial,
    "dropout": _dropout,
}  # fmt: skip
