"""Golden cases of pooling: x 0, the result's gradient 3 of kind ordinary, places to unpool to as targets."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import formats, inputs, philox, pooling
from reference.pooling import Windows

Case = dict[str, Any]
FORMATS = ("float32", "bfloat16", "float16", "float64")


def cases() -> Iterator[Case]:
    """Windows that overlap, lie apart, reach beyond the input and hold more taps than a block of lanes.

    A kernel is compiled for each kind of windows and format, so all formats have a few of them only.
    """
    usual = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}
    for dtype in FORMATS:
        for op in ("max_pool", "avg_pool"):
            for kind, shape in (
                ("ordinary", [1, 2, 9, 7]), ("nonfinite", [2, 3, 9, 7]), ("zeros", [1, 2, 5, 7]),
                ("subnormal", [1, 1, 9, 7]), ("huge", [1, 1, 5, 7]),
            ):  # fmt: skip
                yield _case(op, dtype, kind, shape, usual)
        for op in ("adaptive_max_pool", "adaptive_avg_pool"):
            yield _case(op, dtype, "ordinary", [1, 2, 7, 5], {"output": [3, 2]})
            yield _case(op, dtype, "ordinary", [1, 2, 7, 7], {"output": [1, 1]})
        yield _case("max_unpool", dtype, "ordinary", [2, 3, 4, 3], {"kernel": [2, 2]})
        yield _case("fractional_max_pool", dtype, "ordinary", [1, 2, 9, 8], {"kernel": [2, 3], "output": [4, 5]})
    for op in ("max_pool", "avg_pool"):
        for kind, shape, options in (
            ("nonfinite", [2, 5, 6, 5], {"kernel": [2, 3], "stride": [1, 2], "padding": [1, 1], "ceil": True}),
            ("ordinary", [1, 2, 11], {"kernel": [2], "stride": [3], "padding": [1], "ceil": True}),
            ("ordinary", [1, 2, 4, 5, 6], {"kernel": [3, 2, 2], "stride": [1, 2, 2], "padding": [1, 0, 1]}),
            ("ordinary", [3, 16, 33, 31], usual),
        ):
            yield _case(op, "float32", kind, shape, options)
    apart = {"kernel": [3, 2], "stride": [2, 1], "dilation": [2, 3]}
    yield _case("max_pool", "float32", "ordinary", [1, 2, 9, 8], apart)
    yield _case("max_pool", "float32", "ordinary", [1, 1, 18, 20], {"kernel": [16, 17], "stride": [1, 1]})
    yield _case("avg_pool", "float32", "ordinary", [1, 2, 6, 6], usual | {"ceil": True, "inside": True})
    yield _case("avg_pool", "float32", "ordinary", [1, 2, 6, 6], usual | {"ceil": True, "divisor": 7})
    for kernel in ([8, 7], [36, 31]):
        yield _case("avg_pool", "float32", "ordinary", [1, 1, 36, 33], {"kernel": kernel, "stride": [1, 2]})
    for op in ("adaptive_max_pool", "adaptive_avg_pool"):
        yield _case(op, "float32", "ordinary", [1, 2, 3, 4, 5], {"output": [2, 6, 5]})
    windows = {"kernel": [2, 2, 2], "output": [3, 1, 3]}
    yield _case("fractional_max_pool", "float32", "ordinary", [1, 2, 5, 6, 5], windows)
    for dtype in FORMATS[:3]:
        for p in (2.0, 3.5):
            yield _case("lp_pool", dtype, "ordinary", [1, 2, 6, 5], {**usual, "padding": [0, 0], "ceil": True, "p": p})
    yield _case("lp_pool", "float32", "zeros", [1, 2, 6, 5], {**usual, "padding": [0, 0], "p": 2.0})


def _case(op: str, dtype: str, kind: str, shape: list[int], options: Case) -> Case:
    return {"op": op, "dtype": dtype, "kind": kind, "shapes": [shape], "options": options}


def _triple(values: Any, fill: int) -> tuple[int, int, int]:
    a, b, c = (*[fill] * (3 - len(values)), *values)
    return a, b, c


def _windows(options: Case) -> Windows:
    if "output" in options:
        return Windows(output=_triple(options["output"], 1))
    fills = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
    given = {name: _triple(options.get(name, []), fill) for name, fill in fills.items()}
    return Windows(**given, ceil=options.get("ceil", False))


def _grad(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    return inputs.operand("ordinary", case["dtype"], shape, case["seed"], 3)


def _planes(x: np.ndarray) -> np.ndarray:
    """(N, C, ...) as (N, C, D, H, W)."""
    return x.reshape(*x.shape[:2], *_triple(x.shape[2:], 1))


def _like(x: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(N, C, D, H, W) with as many axes as x."""
    return found.reshape(*found.shape[:2], *found.shape[7 - x.ndim :])


def _max(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    w, wide = _windows(case["options"]), _planes(x[0])
    values, indices = pooling.max_pool(wide, w)
    grad = pooling.max_pool_gradient(_planes(_grad(case, _like(x[0], values).shape)), wide, w, case["dtype"])
    found = {"out": values, "grad": grad}
    return {k: _like(x[0], v) for k, v in found.items()} | {"indices": (_like(x[0], indices), "int64")}


def _avg(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    options, wide, dtype = case["options"], _planes(x[0]), case["dtype"]
    w, how = _windows(options), (options.get("inside", False), options.get("divisor", 0))
    y = pooling.avg_pool(wide, w, dtype, *how)
    grad = pooling.avg_pool_gradient(_planes(_grad(case, _like(x[0], y).shape)), wide.shape, w, dtype, *how)
    return {"out": _like(x[0], y), "grad": _like(x[0], grad)}


def _lp(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    w, p, wide, dtype = _windows(case["options"]), case["options"]["p"], _planes(np.abs(x[0])), case["dtype"]
    y = pooling.lp_pool(wide, p, w, dtype)
    grad = pooling.lp_pool_gradient(_planes(_grad(case, _like(x[0], y).shape)), wide, p, w, dtype)
    return {"out": _like(x[0], y), "grad": _like(x[0], grad)}


def _unpool(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    size = [n * k for n, k in zip(x[0].shape[2:], case["options"]["kernel"], strict=True)]
    places = inputs.targets(math.prod(size), x[0].size, case["seed"], 1).reshape(x[0].shape)
    y = pooling.max_unpool(x[0], places, math.prod(size)).reshape(*x[0].shape[:2], *size)
    grad = _grad(case, y.shape).reshape(*x[0].shape[:2], -1)
    picked = np.take_along_axis(grad, places.reshape(*x[0].shape[:2], -1), 2)
    return {"out": y, "grad": picked.reshape(x[0].shape)}


def _fractional(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    options, dims = case["options"], x[0].ndim - 2
    shape = (*x[0].shape[:2], dims)
    drawn = philox.uniform(case["seed"], 0, math.prod(shape), 0.0, 1.0).reshape(shape)
    samples = formats.rounded(drawn, case["dtype"])
    values, indices = pooling.fractional_max_pool(x[0], samples, options["kernel"], options["output"])
    grad = _grad(case, values.shape)
    total = np.zeros(x[0].shape, x[0].dtype).reshape(*x[0].shape[:2], -1)
    for n, c in np.ndindex(*x[0].shape[:2]):
        for place in np.unique(indices[n, c]):
            total[n, c, place] = pooling.tree(grad[n, c][indices[n, c] == place])
    return {
        "out": values,
        "indices": (indices, "int64"),
        "grad": formats.rounded(total.reshape(x[0].shape), case["dtype"]),
    }


COMPUTE = {
    "max_pool": _max,
    "avg_pool": _avg,
    "adaptive_max_pool": _max,
    "adaptive_avg_pool": _avg,
    "lp_pool": _lp,
    "max_unpool": _unpool,
    "fractional_max_pool": _fractional,
}
