"""Golden cases of softmax and losses.

Operands of `losses`: x 0, y 1, weight 2, pos_weight 3, the gradient of the result 4; those of `nll_loss` and
`cross_entropy_options`: x 0, weight 2, probabilities 3, the gradient 4, targets as in `cross_entropy`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import cross_entropy, inputs, losses, softmax

Case = dict[str, Any]
Results = dict[str, np.ndarray]
HALF_AND_SINGLE = ("float32", "bfloat16", "float16")
PARAMETER = {"smooth_l1": 0.75, "huber": 0.8}
WEIGHTED = ("mse", "l1", "huber", "bce_with_logits", "bce")


def cases() -> Iterator[Case]:
    """New cases come last, since a case's seed is its place."""
    for dtype in HALF_AND_SINGLE:
        for op in ("softmax", "log_softmax"):
            for kind, rows, columns in (
                ("logits", 17, 10), ("logits", 3, 1), ("logits", 1, 1025), ("spread", 7, 13),
                ("nonfinite", 14, 14), ("zeros", 9, 7), ("huge", 9, 7), ("subnormal", 9, 7),
            ):  # fmt: skip
                yield {"op": op, "dtype": dtype, "kind": kind, "shapes": [[rows, columns]]}
    for op in ("softmax", "log_softmax"):
        yield {"op": op, "dtype": "bfloat16", "kind": "logits", "shapes": [[1, 70001]]}
    for dtype in HALF_AND_SINGLE:
        for options in (
            {"weight": True}, {"smoothing": 0.1}, {"weight": True, "smoothing": 0.1}, {"probabilities": True},
            {"probabilities": True, "weight": True, "smoothing": 0.2}, {"ignore_index": 3},
        ):  # fmt: skip
            for reduction, kind, shape in (
                ("mean", "logits", [7, 10]), ("none", "logits", [2, 33]), ("none", "nonfinite", [9, 11]),
            ):  # fmt: skip
                case = {"op": "cross_entropy_options", "dtype": dtype, "kind": kind, "shapes": [shape]}
                yield {**case, "reduction": reduction, "options": options}
        options = {"probabilities": True, "weight": True, "smoothing": 0.1}
        case = {"op": "cross_entropy_options", "dtype": dtype, "kind": "logits", "shapes": [[1, 1025]]}
        yield {**case, "reduction": "sum", "options": options}
        for options in ({}, {"weight": True, "ignore_index": 2}):
            for reduction in ("none", "sum", "mean"):
                case = {"op": "nll_loss", "dtype": dtype, "kind": "logits", "shapes": [[23, 5]]}
                yield {**case, "reduction": reduction, "options": options}
        for loss in losses.FORMULAS:
            for reduction, kind, shape in (
                ("none", "logits", [7, 7]), ("mean", "ordinary", [3, 11]), ("none", "zeros", [3, 9]),
                ("none", "spread", [3, 7]),
            ):  # fmt: skip
                case = {"op": "losses", "dtype": dtype, "kind": kind, "shapes": [shape, shape]}
                yield {**case, "reduction": reduction, "options": {"loss": loss}}
            case = {"op": "losses", "dtype": dtype, "kind": "logits", "shapes": [[5, 7], [5, 7]], "reduction": "sum"}
            if loss in WEIGHTED:
                yield {**case, "options": {"loss": loss, "weight": True, "pos_weight": loss == "bce_with_logits"}}
    for dtype in ("float32", "float64"):
        for loss, kind in (("mse", "nonfinite"), ("l1", "nonfinite"), ("smooth_l1", "tiny"), ("huber", "huge")):
            case = {"op": "losses", "dtype": dtype, "kind": kind, "shapes": [[16, 5], [16, 5]], "reduction": "none"}
            yield {**case, "options": {"loss": loss}}
    case = {"op": "losses", "dtype": "float32", "kind": "ordinary", "shapes": [[70001], [70001]], "reduction": "mean"}
    yield {**case, "options": {"loss": "mse", "loss_only": True}}


def _softmax(case: Case, x: list[np.ndarray]) -> Results:
    log, dtype = case["op"] == "log_softmax", case["dtype"]
    out = softmax.forward(x[0], dtype, log)
    return {"out": out, "grad": softmax.backward(_operand(case, x[0].shape, 1, "ordinary"), out, dtype, log)}


def _cross_entropy(case: Case, x: list[np.ndarray]) -> Results:
    options, (rows, classes) = case["options"], x[0].shape
    target = inputs.targets(classes, rows, case["seed"], 1)
    if "probabilities" in options:
        target = _unit(_operand(case, x[0].shape, 3, "ordinary"))
    weight = np.abs(_operand(case, (classes,), 2, "ordinary")) if "weight" in options else None
    arguments: dict[str, Any] = {"weight": weight, "smoothing": options.get("smoothing", 0.0)}
    ignored = {"ignore_index": options.get("ignore_index", -100)}
    grad, both = _upstream(case, (rows,)), (x[0], target, case["dtype"], case["reduction"])
    results = {
        "loss": np.asarray(cross_entropy.forward(*both, **arguments, **ignored)),
        "grad": cross_entropy.backward(grad, *both, **arguments, **ignored),
    }
    if "probabilities" in options:
        results["grad_target"] = cross_entropy.target_gradient(grad, *both, **arguments)
    return results


def _nll_loss(case: Case, x: list[np.ndarray]) -> Results:
    options, (rows, classes) = case["options"], x[0].shape
    target = inputs.targets(classes, rows, case["seed"], 1)
    weight = np.abs(_operand(case, (classes,), 2, "ordinary")) if "weight" in options else None
    ignored, grad = options.get("ignore_index", -100), _upstream(case, (rows,))
    loss, gradient = losses.nll(x[0], target, case["dtype"], case["reduction"], weight, ignored, grad)
    return {"loss": loss, "grad": gradient}


def _losses(case: Case, operands: list[np.ndarray]) -> Results:
    options = case["options"]
    loss, (x, y) = options["loss"], operands
    if loss == "bce":
        x = _unit(x)
    if loss in ("bce", "bce_with_logits", "kl_div"):
        y = _unit(_operand(case, y.shape, 1, "ordinary"))
    w, v = (
        np.abs(_operand(case, x.shape, stream, "ordinary")) if options.get(key) else None
        for stream, key in ((2, "weight"), (3, "pos_weight"))
    )
    arguments = x, y, case["dtype"], case["reduction"], w, v, PARAMETER.get(loss, 0.0)
    value = np.asarray(losses.forward(loss, *arguments))
    if options.get("loss_only"):
        return {"loss": value}
    by_x, by_y = losses.backward(loss, _upstream(case, x.shape), *arguments)
    return {"loss": value, "grad": by_x, "grad_target": by_y}


def _unit(x: np.ndarray) -> np.ndarray:
    """|x| / 2, and 1 where that is more: a probability."""
    return np.minimum(np.abs(x) * x.dtype.type(0.5), x.dtype.type(1))


def _operand(case: Case, shape: tuple[int, ...], stream: int, kind: str) -> np.ndarray:
    return inputs.operand(kind, case["dtype"], tuple(shape), case["seed"], stream)


def _upstream(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of the result: 1 for a scalar."""
    return _operand(case, shape, 4, "ordinary") if case["reduction"] == "none" else np.asarray(np.float32(1))


COMPUTE = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    "cross_entropy_options": _cross_entropy,
    "nll_loss": _nll_loss,
    "losses": _losses,
}
