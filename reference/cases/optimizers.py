"""Golden cases of Adam and AdamW, p 0 and the gradients of three steps 1, 2, 3, and of clipping: gradients 0, 1, ..."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import adam, clip, inputs

Case = dict[str, Any]
FORMATS = ("float32", "bfloat16", "float16", "float64")


def cases() -> Iterator[Case]:
    """Each option, and each kind of value."""
    for dtype in FORMATS:
        for op, options in (
            ("adam", {}), ("adam", {"lr": 0.1, "betas": [0.8, 0.99], "weight_decay": 0.01, "amsgrad": True}),
            ("adam", {"lr": 1 / 3, "eps": 0.0, "maximize": True}), ("adamw", {"weight_decay": 0.0}),
            ("adamw", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}), ("adamw", {"lr": 3e-4}),
        ):  # fmt: skip
            yield {"op": op, "dtype": dtype, "kind": "ordinary", "shapes": [[9, 14]], "options": options}
        for kind in ("spread", "nonfinite", "zeros", "subnormal"):
            yield {"op": "adamw", "dtype": dtype, "kind": kind, "shapes": [[129]], "options": {"lr": 0.01}}
        shapes = [[5, 7], [0], [1], [1030], [3, 5]]
        for kind, norm_type in (("ordinary", 2.0), ("spread", "inf"), ("tiny", 1.0)):
            clip = {"max_norm": 0.7, "norm_type": norm_type}
            yield {"op": "clip_norm", "dtype": dtype, "kind": kind, "shapes": shapes, "options": clip}
        for options in ({"max_norm": 1e9, "norm_type": 2.0}, {"max_norm": 3.0, "norm_type": "inf"}):
            yield {"op": "clip_norm", "dtype": dtype, "kind": "nonfinite", "shapes": [[9, 31]], "options": options}
    yield {"op": "adamw", "dtype": "float32", "kind": "ordinary", "shapes": [[70001]], "options": {}}
    options = {"max_norm": 1.0, "norm_type": 2.0}
    yield {"op": "clip_norm", "dtype": "float32", "kind": "ordinary", "shapes": [[70001]], "options": options}


def _adam(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    p, dtype = x[0], case["dtype"]
    options = {"weight_decay": 0.01 if case["op"] == "adamw" else 0.0} | case["options"]
    state = adam.start(p, dtype)
    for stream in (1, 2, 3):
        g = inputs.operand(case["kind"], dtype, p.shape, case["seed"], stream)
        p, state = adam.step(p, g, state, dtype, decoupled=case["op"] == "adamw", **options)
    wide = "float64" if dtype == "float64" else "float32"
    return {"out": p, "exp_avg": (state.m, wide), "exp_avg_sq": (state.v, wide)}


def _clip(case: Case, x: list[np.ndarray]) -> dict[str, Any]:
    options = case["options"]
    total, clipped = clip.clipped(x, case["dtype"], options["max_norm"], float(options["norm_type"]))
    wide = "float64" if case["dtype"] == "float64" else "float32"
    return {"total": (np.asarray(total), wide)} | {f"grad{i}": g for i, g in enumerate(clipped)}


COMPUTE = {"adam": _adam, "adamw": _adam, "clip_norm": _clip}
