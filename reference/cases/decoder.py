"""Golden cases of what a decoder has beside norms, products and attention."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import formats, gated, grouped_mm, inputs, int8_linear, moe, philox, rotary

Case = dict[str, Any]
GRADIENT = {"ordered": "ordered", "fixed8": "fixed8", "fixed16": "fixed24", "fixed24": "fixed32", "fixed32": "fixed32"}
OFFS = [2, 2, 9, 10, 14]
ROTARY = (
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768},
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Each format; special values; each variant of frequencies; groups without rows and rows without a group."""
    for dtype in ("float32", "bfloat16", "float16"):
        for i, parameters in enumerate(ROTARY):
            options = {"parameters": parameters, "interleaved": i % 2 == 1}
            yield _case("rotary", dtype, "nonfinite" if i == 1 else "ordinary", [[2, 2, 3, 16 + 3 * (i == 2)]], options)
        # Each is compiled for the CPU by itself: all of one type, the others once.
        for function in gated.ACTIVATIONS if dtype == "bfloat16" else ("swiglu",):
            for kind, size in (("ordinary", 40), ("spread", 40), ("patterns", 80)):
                yield _case("gated", dtype, kind, [[size], [size]], {"function": function})
        for kind in ("ordinary", "nonfinite", "spread", "subnormal"):
            yield _case("softcap", dtype, kind, [[60]], {"cap": 2.5})
    for contract, dtype in (
        ("ordered", "float32"), ("fixed16", "bfloat16"), ("fixed16", "float16"), ("fixed24", "float32"),
        ("fixed24", "bfloat16"), ("fixed32", "float32"), ("fixed8", "bfloat16"),
    ):  # fmt: skip
        for kind in ("ordinary", "nonfinite", "spread", "zeros"):
            yield {**_case("grouped_mm", dtype, kind, [[17, 11], [5, 11, 7]]), "contract": contract}
        for kind, activation, norm in (
            ("ordinary", "silu", True),
            ("nonfinite", "gelu", True),
            ("ties", "gelu", False),
        ):
            options = {"activation": activation, "norm": norm, "k": 3}
            case = _case("moe", dtype, kind, [[6, 10], [4, 14, 10], [4, 10, 7]], options)
            yield {**case, "contract": contract}
        if contract != "ordered":
            for kind in ("ordinary", "nonfinite", "spread", "zeros"):
                yield {**_case("int8_linear", dtype, kind, [[5, 37], [9, 37], [9]]), "contract": contract}


def _case(op: str, dtype: str, kind: str, shapes: list[list[int]], options: dict[str, Any] | None = None) -> Case:
    case = {"op": op, "dtype": dtype, "kind": kind, "shapes": shapes}
    return case if options is None else {**case, "options": options}


def _gradient(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    return inputs.operand("ordinary", case["dtype"], shape, case["seed"], 3)


def _rotary(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    dtype, parameters, interleaved = case["dtype"], dict(case["options"]["parameters"]), case["options"]["interleaved"]
    name, theta = parameters.pop("rope_type"), parameters.pop("rope_theta")
    inv_freq, scaling = rotary.frequencies(16, name, theta, **parameters)
    count = x[0].shape[0] * x[0].shape[2]
    positions = philox.words(case["seed"], 1, count).astype(np.int64) >> (2 * np.arange(count))
    cos, sin = rotary.tables(positions.reshape(x[0].shape[0], -1), inv_freq, scaling, dtype, interleaved)
    by = cos[:, None], sin[:, None]
    return {
        "inv_freq": (inv_freq, "float32"),
        "cos": cos,
        "sin": sin,
        "out": rotary.rotate(x[0], *by, dtype, interleaved),
        "grad": rotary.rotate(_gradient(case, x[0].shape), *by, dtype, interleaved, True),
    }


def _gated(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    name, dtype, g = case["options"]["function"], case["dtype"], _gradient(case, x[0].shape)
    of_gate, of_up = gated.gradients(name, g, x[0], x[1], dtype)
    return {"out": gated.forward(name, x[0], x[1], dtype), "grad_gate": of_gate, "grad_up": of_up}


def _softcap(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    cap, dtype, g = case["options"]["cap"], case["dtype"], _gradient(case, x[0].shape)
    return {"out": gated.softcap(x[0], cap, dtype), "grad": gated.softcap_gradient(g, x[0], cap, dtype)}


def _grouped_mm(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    dtype, contract, offs = case["dtype"], case["contract"], np.array(OFFS)
    out = grouped_mm.forward(x[0], x[1], offs, dtype, contract)
    g = _gradient(case, out.shape)
    grad_a, grad_b = grouped_mm.gradients(g, x[0], x[1], offs, dtype, GRADIENT[contract])
    return {"out": out, "grad_a": grad_a, "grad_b": grad_b}


def _moe(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    dtype, options = case["dtype"], case["options"]
    logits = inputs.operand("logits", dtype, (len(x[0]), len(x[1])), case["seed"], 4)
    weights, experts = moe.router(logits, options["k"], options["norm"])
    gated_by = {"silu": "swiglu", "gelu": "geglu"}[options["activation"]]
    out = moe.forward(x[0], experts, weights, x[1], x[2], gated_by, dtype, case["contract"])
    return {"weights": (weights, "float32"), "experts": (experts, "int64"), "out": out}


def _int8_linear(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    dtype = case["dtype"]
    weight = x[1] if case["kind"] != "nonfinite" else inputs.operand("zeros", dtype, x[1].shape, case["seed"], 1)
    q, scale = int8_linear.quantize(formats.rounded(weight, dtype))
    out = int8_linear.forward(x[0], q, scale, x[2], dtype, case["contract"])
    return {"scale": (scale, "float32"), "out": out}


COMPUTE = {
    "rotary": _rotary, "gated": _gated, "softcap": _softcap, "grouped_mm": _grouped_mm, "moe": _moe,
    "int8_linear": _int8_linear,
}  # fmt: skip
