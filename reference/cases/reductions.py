"""Golden cases of reductions over one or several axes, with their gradients, and of cumulative sums."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import formats, inputs, reductions

Case = dict[str, Any]

# (function, its options); `p` of norms, infinite ones as text.
FUNCTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sum", {}), ("mean", {}), ("var", {}), ("var", {"correction": 0.5}), ("std", {}), ("norm", {"p": "2"}),
    ("norm", {"p": "1"}), ("norm", {"p": "0"}), ("norm", {"p": "inf"}), ("norm", {"p": "-inf"}), ("logsumexp", {}),
    ("amax", {}), ("amin", {}), ("max", {}), ("min", {}), ("cumsum", {}),
)  # fmt: skip
ONE_AXIS = ("max", "min", "cumsum")


def cases() -> Iterator[Case]:
    """Axes inside, outside and apart; the borders of lanes and blocks; values that are easily lost; all formats."""
    for function, options in FUNCTIONS:
        several = [1] if function in ONE_AXIS else [0, 2]

        def case(dtype: str, kind: str, shape: list[int], dims: list[int], f: Any = (function, options)) -> Case:
            return {
                "op": "reduction", "dtype": dtype, "kind": kind, "shapes": [shape], "function": f[0],
                "options": f[1], "dims": dims,
            }  # fmt: skip

        yield case("float32", "ordinary", [3, 5, 7], [1])
        yield case("float32", "ordinary", [3, 5, 7], several)
        yield case("float32", "ordinary", [2, 4200], [1])
        yield case("float32", "ordinary", [4200, 2], [0])
        yield case("float32", "spread", [66000], [0])
        for kind in ("spread", "subnormal", "huge", "zeros", "nonfinite"):
            yield case("float32", kind, [11, 9], [0])
        for dtype in ("bfloat16", "float16", "float64"):
            if dtype == "float64" and function == "logsumexp":
                continue
            yield case(dtype, "ordinary", [2, 5, 3], several)
            yield case(dtype, "nonfinite", [4, 33], [1])
            yield case(dtype, "spread", [3, 3000], [1])


def _reduction(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    f, dims, dtype = case["function"], case["dims"], case["dtype"]
    shape = tuple(s for d, s in enumerate(x[0].shape) if d not in dims)
    g = inputs.operand("ordinary", dtype, x[0].shape if f == "cumsum" else shape, case["seed"], 3)
    return COMPUTE_ONE[f](x[0], g, dims, dtype, case["options"])


def _sum(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    grad = np.broadcast_to(np.expand_dims(g, tuple(dims)), x.shape)
    return {"out": reductions.sum(x, dims, dtype), "grad": grad}


def _mean(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    n = math.prod(x.shape[d] for d in dims)
    share = formats.rounded(reductions.mean_gradient(g, n, dtype), dtype)
    return {
        "out": reductions.mean(x, dims, dtype),
        "grad": np.broadcast_to(np.expand_dims(share, tuple(dims)), x.shape),
    }


def _var(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    return {
        "out": reductions.var(x, dims, dtype, **options),
        "grad": reductions.var_gradient(g, x, dims, dtype, **options),
    }


def _std(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    return {
        "out": reductions.var(x, dims, dtype, root=True),
        "grad": reductions.var_gradient(g, x, dims, dtype, root=True),
    }


def _norm(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    p = float(options["p"])
    return {"out": reductions.norm(x, dims, dtype, p), "grad": reductions.norm_gradient(g, x, dims, dtype, p)}


def _logsumexp(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    return {
        "out": reductions.logsumexp(x, dims, dtype),
        "grad": reductions.logsumexp_gradient(g, x, dims, dtype),
    }


def _extreme(largest: bool) -> Any:
    def compute(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
        return {
            "out": reductions.extreme(x, dims, largest),
            "grad": reductions.extreme_gradient(g, x, dims, dtype, largest),
        }

    return compute


def _chosen(largest: bool) -> Any:
    def compute(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
        index = reductions.position(x, dims, largest)
        at = np.expand_dims(index, dims[0])
        grad = np.zeros_like(x)
        np.put_along_axis(grad, at, np.expand_dims(g, dims[0]), dims[0])
        values = np.take_along_axis(x, at, dims[0]).squeeze(dims[0])
        return {"values": values, "indices": (index, "int64"), "grad": grad}

    return compute


def _cumsum(x: np.ndarray, g: np.ndarray, dims: list[int], dtype: str, options: Case) -> dict[str, Any]:
    return {
        "out": reductions.cumsum(x, dims[0], dtype),
        "grad": reductions.cumsum(g, dims[0], dtype, reverse=True),
    }


COMPUTE_ONE: dict[str, Any] = {
    "sum": _sum, "mean": _mean, "var": _var, "std": _std, "norm": _norm, "logsumexp": _logsumexp,
    "amax": _extreme(True), "amin": _extreme(False), "max": _chosen(True), "min": _chosen(False), "cumsum": _cumsum,
}  # fmt: skip
COMPUTE = {"reduction": _reduction}
