"""Golden cases of attention: dense, packed and paged.

q, k, v are the operands 0, 1, 2, the gradient of the result 3, what a mask is made of 4, in its shape; sinks 5, fp32;
4 and 5 of kind ordinary. A bool mask is True where operand 4 is above -0.5; an additive one is operand 4, and -inf
where that is below -1. The other options are those of the public functions.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from reference import attention, formats, inputs
from reference.sum import tree

Case = dict[str, Any]
Arrays = dict[str, Any]
GRADIENT = {"ordered": "ordered", "fixed8": "fixed16", "fixed16": "fixed24", "fixed24": "fixed32", "fixed32": "fixed32"}
# All cases, and every third.
FORMATS = (
    (1, (("ordered", "float32"), ("fixed16", "bfloat16"), ("fixed24", "float32"), ("fixed32", "float32"))),
    (3, (("ordered", "bfloat16"), ("fixed8", "bfloat16"), ("fixed16", "float16"), ("fixed24", "bfloat16"))),
)

# Results of more than 8192 elements keep their digest alone, and most cases are as large as that.
DENSE: tuple[tuple[str, list[list[int]], Case], ...] = (
    ("ordinary", [[1, 2, 3, 32], [1, 1, 5, 32], [1, 1, 5, 32]], {"is_causal": True}),
    ("logits", [[3, 1, 2, 32], [3, 1, 131, 32], [3, 1, 131, 32]], {"first_query": [128, 129, 3], "is_causal": True}),
    ("ordinary", [[1, 4, 150, 40], [1, 2, 150, 40], [1, 2, 150, 56]], {"is_causal": True}),
    ("ordinary", [[2, 2, 90, 48], [2, 1, 300, 48], [2, 1, 300, 48]],
     {"is_causal": True, "first_key": [7, -20], "first_query": [100, 230], "sinks": True}),
    ("logits", [[1, 2, 140, 32], [1, 2, 280, 32], [1, 2, 280, 32]], {"window": [100, 3], "softcap": 2.5, "scale": 0.3}),
    ("ordinary", [[2, 2, 65, 40], [2, 1, 200, 40], [2, 1, 200, 32]], {"mask": "bool", "mask_shape": [2, 1, 65, 200]}),
    ("ordinary", [[2, 2, 65, 40], [2, 1, 200, 40], [2, 1, 200, 32]],
     {"mask": "added", "mask_shape": [65, 200], "sinks": True, "softcap": 4.0, "is_causal": True}),
    *((kind, [[1, 2, 130, 32], [1, 1, 260, 32], [1, 1, 260, 32]], {"is_causal": True, "first_query": [129]})
      for kind in ("spread", "subnormal", "zeros", "huge", "ties")),
    ("nonfinite", [[1, 2, 130, 32], [1, 1, 260, 32], [1, 1, 260, 32]], {"window": [2, -1], "is_causal": True}),
)  # fmt: skip
VARLEN: tuple[tuple[str, list[list[int]], Case], ...] = (
    ("ordinary", [[139, 2, 32], [302, 1, 32], [302, 1, 32]],
     {"queries": [0, 3, 3, 71, 137], "keys": [0, 140, 150, 218, 300], "window": [70, -1], "sinks": True}),
    ("nonfinite", [[130, 2, 32], [260, 2, 32], [260, 2, 32]],
     {"queries": [0, 60, 130], "keys": [0, 190, 260], "window": [2, 0]}),
)  # fmt: skip
PAGED: tuple[tuple[str, list[list[int]], Case], ...] = (
    ("ordinary", [[70, 4, 32], [20, 16, 2, 32], [20, 16, 2, 32]],
     {"queries": [0, 1, 1, 67, 68], "lengths": [140, 33, 66, 0], "sinks": True,
      "table": [[3, 11, 7, 19, 0, 5, 13, 2, 17], [4, 8, 12, -1, -1, -1, -1, -1, -1], [1, 6, 9, 10, 14, -1, -1, -1, -1],
                [-1] * 9]}),
    ("logits", [[3, 2, 32], [5, 64, 1, 32], [5, 64, 1, 32]],
     {"queries": [0, 2, 3], "lengths": [130, 100], "table": [[4, 1, 2], [-1, 0, 3]], "window": [20, 0],
      "softcap": 3.0}),
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Every option and kind under every contract but fixed8, and some in the other formats."""
    listed = [
        {"op": op, "kind": kind, "shapes": shapes, "options": options}
        for op, listed in (("attention", DENSE), ("varlen_attention", VARLEN), ("paged_attention", PAGED))
        for kind, shapes, options in listed
    ]
    for step, formats_ in FORMATS:
        for contract, dtype in formats_:
            yield from ({**case, "contract": contract, "dtype": dtype} for case in listed[::step])


def _operand(case: Case, shape: tuple[int, ...], stream: int, kind: str | None = None) -> np.ndarray:
    return inputs.operand(kind or case["kind"], case["dtype"], shape, case["seed"], stream)


def _rule(case: Case, width: int) -> attention.Rule:
    """Rule of the forward pass for a head size."""
    options = case["options"]
    return attention.Rule(
        case["contract"],
        float(np.float32(options.get("scale", 1 / np.sqrt(width)))),
        options.get("is_causal", case["op"] != "attention"),
        tuple(options.get("window", (-1, -1))),
        options.get("softcap", 0.0),
    )


def _sinks(case: Case, heads: int) -> np.ndarray | None:
    return inputs.operand("ordinary", "float32", (heads,), case["seed"], 5) if "sinks" in case["options"] else None


def _mask(case: Case) -> np.ndarray | None:
    options = case["options"]
    if "mask" not in options:
        return None
    drawn = _operand(case, tuple(options["mask_shape"]), 4, "ordinary")
    return drawn > -0.5 if options["mask"] == "bool" else np.where(drawn < -1, np.float32(-np.inf), drawn)


def _dense(case: Case, x: list[np.ndarray]) -> Arrays:
    q, k, v = x
    rule, mask, sinks = _rule(case, q.shape[-1]), _mask(case), _sinks(case, q.shape[1])
    first = [
        np.array(case["options"][name]) if name in case["options"] else None for name in ("first_key", "first_query")
    ]
    out, lse = attention.forward(q, k, v, case["dtype"], rule, mask, sinks, *first)
    grad = _operand(case, out.shape, 3)
    rule = replace(rule, contract=GRADIENT[case["contract"]])
    found = attention.backward(grad, q, k, v, out, lse, case["dtype"], rule, mask, sinks, *first)
    results = _results(out, found.q, found.k, found.v, found.sinks)
    if mask is not None and mask.dtype != np.bool_:
        # Broadcast along the batch and the heads.
        summed = tree(found.scores.reshape(-1, *mask.shape))
        results["grad_mask"] = formats.rounded(summed, case["dtype"])
    return results


def _varlen(case: Case, x: list[np.ndarray]) -> Arrays:
    q, k, v = x
    rule, sinks = _rule(case, q.shape[-1]), _sinks(case, q.shape[1])
    ends = [np.array(case["options"][name]) for name in ("queries", "keys")]
    out, lse = attention.packed(q, k, v, *ends, case["dtype"], rule, sinks)
    rule = replace(rule, contract=GRADIENT[case["contract"]])
    grad = _operand(case, out.shape, 3)
    return _results(out, *attention.packed_backward(grad, q, k, v, out, lse, *ends, case["dtype"], rule, sinks))


def _paged(case: Case, x: list[np.ndarray]) -> Arrays:
    q, k, v = x
    where = [np.array(case["options"][name]) for name in ("table", "queries", "lengths")]
    rule, sinks = _rule(case, q.shape[-1]), _sinks(case, q.shape[1])
    return {"out": attention.paged(q, k, v, *where, case["dtype"], rule, sinks)[0]}


def _results(out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, sinks: np.ndarray | None) -> Arrays:
    results: Arrays = {"out": out, "grad_q": q, "grad_k": k, "grad_v": v}
    return results if sinks is None else results | {"grad_sinks": (sinks, "float32")}


COMPUTE = {"attention": _dense, "varlen_attention": _varlen, "paged_attention": _paged}
