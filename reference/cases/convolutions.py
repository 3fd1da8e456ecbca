"""Golden cases of convolutions: x 0, weight 1, bias 2, the result's gradient 3."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import conv, inputs

Case = dict[str, Any]
Rule = tuple[str, str]

F32, BF16, F16, F64 = "float32", "bfloat16", "float16", "float64"
ORDERED, SINGLE, DOUBLE, HALF = ("ordered", F32), ("fixed24", F32), ("fixed32", F32), ("fixed16", BF16)
# Every contract, every format.
ALL = (
    ORDERED, ("ordered", BF16), ("ordered", F64), ("fixed8", F32), HALF, ("fixed16", F16), SINGLE, ("fixed24", BF16),
    DOUBLE,
)  # fmt: skip


def cases() -> Iterator[Case]:
    """One plain shape under every rule, each special shape and kind of value under a few.

    The longest contractions have results of more than 8192 elements, so that only their digests are kept.
    """
    plain = [2, 3, 4, 5], [4, 3, 3, 3]
    yield from _each(ALL, *plain, padding=1)
    for x, weight, rules, options in (
        # Strides that read every position, and those that leave some out.
        ([2, 3, 7, 6], [4, 3, 3, 3], (ORDERED, SINGLE), {"stride": 2, "padding": 1}),
        ([2, 7, 3, 4], [5, 7, 1, 1], (SINGLE, HALF), {}),
        ([2, 7, 4, 5], [5, 7, 1, 1], (DOUBLE, HALF), {"stride": 2}),
        # Kernel 1, but not pointwise.
        ([2, 3, 4, 5], [4, 3, 1, 1], (SINGLE,), {"stride": 2, "padding": 1}),
        ([1, 3, 6, 7], [4, 3, 2, 4], (SINGLE,), {"padding": "same"}),
        ([1, 3, 6, 7], [2, 3, 4, 3], (HALF,), {"padding": "same", "dilation": [1, 2]}),
        ([1, 3, 6, 7], [3, 3, 3, 3], (DOUBLE,), {"padding": 2, "dilation": 2}),
        ([2, 6, 4, 3], [9, 2, 3, 2], (SINGLE, HALF), {"groups": 3}),
        ([2, 3, 3, 4], [6, 1, 3, 3], (("fixed24", F16), DOUBLE, ("ordered", F64)), {"groups": 3, "padding": 1}),
        ([1, 3, 9, 8], [3, 3, 7, 7], (SINGLE, HALF), {"stride": 2, "padding": 3}),
        # Outputs that read nothing but padding.
        ([1, 2, 3, 4], [3, 2, 3, 2], (ORDERED, SINGLE), {"padding": [4, 3]}),
        ([2, 4, 17], [6, 4, 5], (("ordered", F16), SINGLE), {"stride": 3, "padding": 2}),
        ([1, 2, 4, 3, 5], [3, 2, 2, 3, 3], (ORDERED, SINGLE), {"stride": [2, 1, 2], "padding": [1, 0, 1]}),
        ([0, 3, 5, 5], [4, 3, 3, 3], (SINGLE,), {"padding": 1}),
        # One term more and less than a chunk: forward, input gradient, weight gradient.
        ([1, 1030, 4, 4], [2, 1030, 2, 2], (ORDERED,), {}),
        ([1, 2, 4, 4], [1030, 2, 2, 2], (("ordered", BF16),), {"padding": "valid"}),
        ([3, 2, 37, 38], [2, 2, 3, 3], (ORDERED, SINGLE), {"padding": 1}),
    ):
        yield from _each(rules, x, weight, **options)
    for x, weight, rules, options in (
        ([2, 4, 4, 3], [4, 3, 3, 3], (ORDERED, SINGLE), {"stride": 2, "padding": 1, "output_padding": 1}),
        ([2, 4, 5], [4, 2, 3], (DOUBLE,), {"stride": 3, "groups": 2, "dilation": 2, "output_padding": 2}),
        ([1, 3, 2, 3, 2], [3, 2, 2, 3, 2], (SINGLE,), {"stride": [1, 2, 2], "padding": [0, 1, 0]}),
        ([1, 3, 4, 4], [3, 1, 4, 4], (("fixed24", F16),), {"stride": 2, "padding": 1, "groups": 3}),
        ([1, 3, 3, 3], [3, 4, 1, 1], (("fixed8", BF16),), {"stride": 2, "output_padding": 1}),
    ):
        yield from _each(rules, x, weight, op="conv_transpose", **options)
    small = [1, 3, 5, 4], [3, 3, 3, 3]
    for kind, rules in (
        ("spread", (SINGLE,)), ("subnormal", (DOUBLE,)), ("tiny", (ORDERED, SINGLE)), ("huge", (HALF,)),
        ("zeros", (ORDERED,)), ("extremes", (ORDERED,)), ("ties", (HALF,)),
        ("nonfinite", (ORDERED, SINGLE, HALF)),
    ):  # fmt: skip
        yield from _each(rules, *small, kind=kind, padding=1)
    for x, weight, rules, options in (
        ([3, 7, 4, 5], [7, 7, 1, 1], (SINGLE,), {"stride": 2}),
        ([2, 3, 7, 6], [4, 3, 3, 3], (ORDERED, SINGLE), {"stride": 2, "padding": 2}),
        ([2, 3, 5, 6], [6, 1, 3, 3], (HALF,), {"groups": 3, "padding": 1}),
        ([2, 2, 3, 4], [4, 2, 3, 2], (SINGLE,), {"padding": [4, 3]}),
    ):
        yield from _each(rules, x, weight, kind="nonfinite", **options)
    yield from _each((SINGLE,), [2, 4, 4, 3], [4, 3, 3, 2], op="conv_transpose", kind="nonfinite", stride=2)


def _each(
    rules: tuple[Rule, ...], x: list[int], weight: list[int], op: str = "conv", kind: str = "ordinary", **options: Any
) -> Iterator[Case]:
    groups = options.get("groups", 1)
    outputs = weight[0] if op == "conv" else weight[1] * groups
    for contract, dtype in rules:
        yield {
            "op": op,
            "contract": contract,
            "dtype": dtype,
            "kind": kind,
            "shapes": [x, weight, [outputs]],
            "options": options,
        }


def _conv(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    value, weight, bias = x
    rule = case["dtype"], case["contract"]
    g = conv.geometry(value.shape[2:], weight.shape[2:], **case["options"])
    y = conv.forward(value, weight, bias, g, *rule)
    grad = _upstream(case, y)
    return {
        "out": y,
        "grad_input": conv.input_gradient(grad, weight, None, g, *rule),
        "grad_weight": conv.weight_gradient(grad, value, g, *rule),
        "grad_bias": conv.bias_gradient(grad, case["dtype"]),
    }


def _conv_transpose(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    value, weight, bias = x
    rule = case["dtype"], case["contract"]
    g = conv.transposed_geometry(value.shape[2:], weight.shape[2:], **case["options"])
    y = conv.input_gradient(value, weight, bias, g, *rule)
    grad = _upstream(case, y)
    return {
        "out": y,
        "grad_input": conv.forward(grad, weight, None, g, *rule),
        "grad_weight": conv.weight_gradient(value, grad, g, *rule),
        "grad_bias": conv.bias_gradient(grad, case["dtype"]),
    }


def _upstream(case: Case, y: np.ndarray) -> np.ndarray:
    return inputs.operand(case["kind"], case["dtype"], y.shape, case["seed"], 3)


COMPUTE = {"conv": _conv, "conv_transpose": _conv_transpose}
