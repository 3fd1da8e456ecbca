"""Golden cases of arithmetic on tensors and scalars, and of the activations of two operands."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference import activations, arithmetic, derivatives, formats, inputs
from reference.sum import sum_rows

Case = dict[str, Any]

HALF_AND_SINGLE = ("float32", "bfloat16", "float16")


def cases() -> Iterator[Case]:
    """Ordinary, huge, tiny and special numbers; operands that are broadcast along either axis."""
    for dtype in (*HALF_AND_SINGLE, "float64"):
        for kind in ("ordinary", "spread", "zeros", "nonfinite", "subnormal"):
            for mode in (None, "floor", "trunc"):
                yield _case("div", dtype, kind, [[13, 11], [11]], {"rounding_mode": mode})
            yield _case("div", dtype, kind, [[13, 11]], {"other": -0.7})
            yield _case("lerp", dtype, kind, [[13, 11], [13, 1], [11]], {})
            yield _case("addcmul", dtype, kind, [[13, 11], [13, 1], [13, 11]], {"value": 0.3})
            yield _case("addcdiv", dtype, kind, [[13, 11], [13, 11], [1, 11]], {"value": -1.7})
        yield _case("lerp", dtype, "ordinary", [[13, 11], [13, 11]], {"weight": 0.6})
        for kind in ("logits", "nonfinite"):
            yield _case("prelu", dtype, kind, [[3, 8, 5], [8]], {})
            if dtype != "float64":
                yield _case("glu", dtype, kind, [[3, 8, 5]], {"dim": 1})


def _case(op: str, dtype: str, kind: str, shapes: list[list[int]], options: Case) -> Case:
    return {"op": op, "dtype": dtype, "kind": kind, "shapes": shapes, "options": options}


def _upstream(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    return inputs.operand("ordinary", case["dtype"], shape, case["seed"], 3)


def _glu(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    dtype, a, b = case["dtype"], x[0][:, :4], x[0][:, 4:]
    with np.errstate(all="ignore"):
        both = derivatives.glu(_upstream(case, a.shape), a, b)
    grad = np.concatenate([formats.rounded(g, dtype) for g in both], axis=1)
    return {"out": activations.forward("glu", dtype, a, b), "grad_0": grad}


def _prelu(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    dtype, a, b = case["dtype"], x[0], x[1].reshape(1, 8, 1)
    with np.errstate(all="ignore"):
        both = derivatives.prelu(_upstream(case, a.shape), a, b)
    grad, terms = (formats.rounded(g, dtype) for g in both)
    weight = sum_rows(np.moveaxis(terms, 1, -1).reshape(-1, 8), dtype)
    return {"out": activations.forward("prelu", dtype, a, b), "grad_0": grad, "grad_1": weight}


def _arithmetic(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    name, dtype, options = case["op"], case["dtype"], case["options"]
    kind = formats.compute_type(dtype)
    scalars = [kind(v) for k, v in options.items() if k != "rounding_mode"]
    operands = [*x, *(np.asarray(v) for v in scalars)]
    rounding = options.get("rounding_mode")
    with np.errstate(all="ignore"):
        out = formats.rounded(arithmetic.FORWARD[f"{name}_{rounding}" if rounding else name](*operands), dtype)
        results = {"out": out}
        if not rounding:
            full = arithmetic.GRADIENTS[name](_upstream(case, out.shape), *operands)
            for k, shape in enumerate(v.shape for v in x):
                whole = np.broadcast_to(formats.rounded(full[k], dtype), out.shape)
                results[f"grad_{k}"] = _summed(whole, shape, dtype)
    return results


def _summed(x: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """SUM over the axes of x (rows, columns) that `shape` was broadcast along."""
    if x.shape == shape:
        return x
    if shape[0] == x.shape[0] and len(shape) == 2:
        return sum_rows(x.T, dtype).reshape(shape)
    return sum_rows(x, dtype).reshape(shape)


COMPUTE: dict[str, Callable[[Case, list[np.ndarray]], dict[str, np.ndarray]]] = {
    "div": _arithmetic, "lerp": _arithmetic, "addcmul": _arithmetic, "addcdiv": _arithmetic, "glu": _glu,
    "prelu": _prelu,
}  # fmt: skip
