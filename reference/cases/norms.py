"""Golden cases of norms: x 0, weight 1, bias 2, result's gradient 3, residual or running mean 4, variance 5."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import batch_norm, formats, group_norm, inputs, layer_norm, rms_norm

Case = dict[str, Any]
EPS = 1e-5
MOMENTUM = 0.3


def cases() -> Iterator[Case]:
    """Rows at the borders of SUM, each kind of value, and shapes of each way that channels lie.

    Long ones are large enough that only their digests are kept.
    """
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for op in ("layer_norm", "rms_norm"):
            for kind, rows, columns in (
                ("ordinary", 5, 33), ("ordinary", 3, 1), ("spread", 7, 20), ("zeros", 5, 9), ("nonfinite", 9, 40),
                ("subnormal", 5, 12), ("huge", 5, 12),
            ):  # fmt: skip
                yield _case(op, dtype, kind, [rows, columns], columns)
            yield _case(op, dtype, "ordinary", [5, 33], 33) | {"options": {"residual": True}}
            yield _case(op, dtype, "ordinary", [1, 9001], 9001)
        yield _case("layer_norm", dtype, "ordinary", [2800, 3], 3)
        for kind, shape, groups in (
            ("ordinary", [2, 6, 35], 3), ("ordinary", [3, 4, 700], 2), ("nonfinite", [4, 4, 5], 2),
            ("zeros", [3, 4, 6], 1),
        ):  # fmt: skip
            yield _case("group_norm", dtype, kind, shape, shape[1]) | {"options": {"groups": groups}}
        for op in ("batch_norm", "instance_norm"):
            for kind, shape in (
                ("ordinary", [3, 5, 13]), ("ordinary", [3, 3, 1030]), ("nonfinite", [4, 12, 5]), ("zeros", [3, 4, 6]),
            ):  # fmt: skip
                yield _case(op, dtype, kind, shape, shape[1])
        yield _case("batch_norm", dtype, "ordinary", [2100, 4, 1], 4)
        yield _case("batch_norm", dtype, "ordinary", [3, 5, 13], 5) | {"options": {"training": False}}
    for op in ("layer_norm", "rms_norm"):
        yield _case(op, "float32", "ordinary", [9, 1024], 1024)
        yield _case(op, "float32", "ordinary", [9, 1025], 1025)
        yield _case(op, "float32", "ordinary", [2, 70000], 70000)
        yield _case(op, "float32", "ordinary", [70000, 2], 2)
    yield _case("batch_norm", "float32", "ordinary", [3, 2, 30000], 2)


def _case(op: str, dtype: str, kind: str, shape: list[int], parameters: int) -> Case:
    return {"op": op, "dtype": dtype, "kind": kind, "shapes": [shape, [parameters], [parameters]]}


def _operand(case: Case, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    return inputs.operand(case["kind"], case["dtype"], shape, case["seed"], stream)


def _named(case: Case, y: np.ndarray, gradients: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """Results and gradients, those of weight and bias rounded to the format."""
    grads = (gradients[0], *(formats.rounded(v, case["dtype"]) for v in gradients[1:]))
    names = ("grad_input", "grad_weight", "grad_bias")
    return {"out": y} | dict(zip(names, grads, strict=False))


def _layer_norm(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    rows, weight, bias = x
    dtype, grad = case["dtype"], _operand(case, 3, rows.shape)
    residual = "options" in case
    if residual:
        rows = layer_norm.residual_sum(rows, _operand(case, 4, rows.shape), dtype)
    if case["op"] == "layer_norm":
        y = layer_norm.forward(rows, weight, bias, EPS, dtype)
        gradients: tuple[np.ndarray, ...] = layer_norm.backward(grad, rows, weight, EPS, dtype)
    else:
        y = rms_norm.forward(rows, weight, EPS, dtype)
        gradients = rms_norm.backward(grad, rows, weight, EPS, dtype)
    return _named(case, y, gradients) | ({"sum": rows} if residual else {})


def _group_norm(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    groups, dtype = case["options"]["groups"], case["dtype"]
    y = group_norm.forward(*_with(x, groups), EPS, dtype)
    return _named(case, y, group_norm.backward(_operand(case, 3, x[0].shape), x[0], groups, x[1], EPS, dtype))


def _with(x: list[np.ndarray], groups: int) -> tuple[Any, ...]:
    return x[0], groups, x[1], x[2]


def _running(case: Case, channels: int) -> batch_norm.Running:
    return batch_norm.Running(_operand(case, 4, (channels,)), np.abs(_operand(case, 5, (channels,))))


def _batch_norm(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    dtype, running = case["dtype"], _running(case, x[0].shape[1])
    grad = _operand(case, 3, x[0].shape)
    if "options" in case:
        y = batch_norm.evaluation(*x, EPS, dtype, running)
        return _named(case, y, batch_norm.backward(grad, x[0], x[1], EPS, dtype, running))
    forward, backward = (
        (batch_norm.training, batch_norm.backward)
        if case["op"] == "batch_norm"
        else (batch_norm.instance, batch_norm.instance_backward)
    )
    y, new = forward(*x, EPS, dtype, MOMENTUM, running)
    assert new is not None
    statistics = {name: formats.rounded(v, dtype) for name, v in zip(("mean", "var"), new, strict=True)}
    return _named(case, y, backward(grad, x[0], x[1], EPS, dtype)) | statistics


COMPUTE = {
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _batch_norm,
}
