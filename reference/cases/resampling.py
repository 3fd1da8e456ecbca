"""Golden cases of padding, resizing, sampling, bags and ctc_loss, with their gradients.

x is operand 0 and the gradient of the result operand 3 of kind ordinary. grid_sample: the grid is operand 1.
embedding_bag: the index is stream 1 modulo the rows, per_sample_weights operand 2. ctc_loss: x is -|operand 0|, the
labels are stream 1 modulo the classes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import ctc_loss, embedding_bag, grid_sample, inputs, resample

Case = dict[str, Any]
Results = dict[str, Any]
HALF_AND_SINGLE = ("float32", "bfloat16", "float16")


def cases() -> Iterator[Case]:
    """Every mode in fp32, some in the other formats. New cases come last, since a case's seed is its place."""

    def case(function: str, dtype: str, shapes: list[list[int]], kind: str = "ordinary", **options: Any) -> Case:
        return {
            "op": "resampling", "dtype": dtype, "kind": kind, "shapes": shapes, "function": function,
            "options": options,
        }  # fmt: skip

    for dtype in (*HALF_AND_SINGLE, "float64"):
        single = dtype == "float32"
        for mode in ("reflect", "replicate", "circular"):
            yield case("pad", dtype, [[2, 2, 4, 5]], mode=mode, pad=[2, 3, 1, 0])
            if single:
                yield case("pad", dtype, [[1, 2, 7]], "nonfinite", mode=mode, pad=[4, 6])
                yield case("pad", dtype, [[1, 1, 3, 3, 4]], mode=mode, pad=[1, 2, -1, 2, 2, 0])
        for mode, axes in (("nearest", 2), ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)):
            if single or mode in ("bilinear", "bicubic"):
                shape, size = [2, 2, 5, 4, 3][: 2 + axes], [3, 7, 5][:axes]
                yield case("interpolate", dtype, [shape], mode=mode, size=size)
            if single:
                yield case("interpolate", dtype, [shape], "nonfinite", mode=mode, scale_factor=1.7)
            if single and mode != "nearest":
                yield case("interpolate", dtype, [shape], mode=mode, size=size[::-1], align_corners=True)
        if single:
            for mode in ("bilinear", "bicubic"):
                yield case("interpolate", dtype, [[1, 2, 9, 7]], mode=mode, size=[4, 11], antialias=True)
            yield case("interpolate", dtype, [[1, 1, 40]], mode="nearest-exact", size=[17])
            yield case("interpolate", dtype, [[2, 1, 300]], "subnormal", mode="linear", size=[700])
        yield case("unfold", dtype, [[2, 2, 5, 6]], kernel_size=[2, 3], padding=1, stride=2, dilation=1)
        if dtype != "float64":
            for mode in ("bilinear", "nearest", "bicubic"):
                for padding in ("zeros", "border", "reflection") if single else ("reflection",):
                    for align in (False, True) if single else (False,):
                        options = {"mode": mode, "padding_mode": padding, "align_corners": align}
                        yield case("grid_sample", dtype, [[1, 2, 4, 5], [1, 2, 3, 2]], **options)
            options = {"mode": "bilinear", "padding_mode": "border", "align_corners": False}
            yield case("grid_sample", dtype, [[1, 2, 3, 2, 4], [1, 2, 2, 2, 3]], **options)
            yield case("grid_sample", dtype, [[2, 3, 4, 5], [2, 2, 3, 2]], "nonfinite", **options)
            for reduction in ("none", "mean"):
                yield case("ctc_loss", dtype, [[9, 3, 5], [3, 3]], reduction=reduction, zero_infinity=False)
            yield case("ctc_loss", dtype, [[4, 2, 3], [2, 4]], reduction="sum", zero_infinity=True)
        for mode in ("sum", "mean", "max"):
            yield case("embedding_bag", dtype, [[7, 3], [20]], mode=mode, offsets=[0, 4, 4, 5], padding_idx=2)
        yield case("embedding_bag", dtype, [[7, 3], [20]], mode="sum", offsets=[0, 11], weighted=True)


def _operand(case: Case, shape: tuple[int, ...], stream: int) -> np.ndarray:
    return inputs.operand("ordinary", case["dtype"], tuple(shape), case["seed"], stream)


def _pair(values: tuple[np.ndarray, ...]) -> Results:
    return dict(zip(("out", "grad", "grad_other"), values, strict=False))


def _pad(case: Case, x: np.ndarray) -> Results:
    options, shape = case["options"], list(x.shape)
    for d in range(len(options["pad"]) // 2):
        shape[-1 - d] += sum(options["pad"][2 * d : 2 * d + 2])
    return _pair(resample.pad(x, _operand(case, tuple(shape), 3), options["pad"], options["mode"], case["dtype"]))


def _interpolate(case: Case, x: np.ndarray) -> Results:
    options = dict(case["options"])
    mode, factor = options.pop("mode"), options.pop("scale_factor", None)
    size = options.pop("size", None) or [int(n * factor) for n in x.shape[2:]]
    g = _operand(case, (*x.shape[:2], *size), 3)
    return _pair(resample.interpolate(x, g, mode, case["dtype"], [factor] * len(size), **options))


def _unfold(case: Case, x: np.ndarray) -> Results:
    options = dict(case["options"])
    kernel, p, s, d = options["kernel_size"], options["padding"], options["stride"], options["dilation"]
    blocks = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
    g = _operand(case, (x.shape[0], x.shape[1] * kernel[0] * kernel[1], blocks[0] * blocks[1]), 3)
    return _pair(resample.unfold(x, g, kernel, case["dtype"], d, p, s))


def _grid_sample(case: Case, x: np.ndarray) -> Results:
    grid = inputs.operand(case["kind"], case["dtype"], tuple(case["shapes"][1]), case["seed"], 1)
    g, options = _operand(case, (*x.shape[:2], *grid.shape[1:-1]), 3), case["options"]
    arguments = options["mode"], options["padding_mode"], options["align_corners"]
    return _pair(grid_sample.grid_sample(x, grid, g, case["dtype"], *arguments))


def _embedding_bag(case: Case, x: np.ndarray) -> Results:
    options, count = case["options"], case["shapes"][1][0]
    index = inputs.targets(len(x), count, case["seed"], 1)
    g = _operand(case, (len(options["offsets"]), x.shape[1]), 3)
    factors = _operand(case, (count,), 2) if options.get("weighted") else None
    offsets = np.array(options["offsets"])
    found = embedding_bag.embedding_bag(
        index, x, offsets, options["mode"], g, case["dtype"], factors, options.get("padding_idx")
    )
    return _pair(found if factors is not None else found[:2])


def _ctc_loss(case: Case, x: np.ndarray) -> Results:
    steps, samples, classes = x.shape
    length = case["shapes"][1][1]
    labels = inputs.targets(classes, samples * length, case["seed"], 1).reshape(samples, length)
    options = case["options"]
    shape = (samples,) if options["reduction"] == "none" else ()
    g = _operand(case, shape, 3)
    return _pair(ctc_loss.ctc_loss(-np.abs(x), labels.tolist(), [steps] * samples, case["dtype"], g, **options))


FUNCTIONS = {
    "pad": _pad, "interpolate": _interpolate, "unfold": _unfold, "grid_sample": _grid_sample,
    "embedding_bag": _embedding_bag, "ctc_loss": _ctc_loss,
}  # fmt: skip
COMPUTE = {"resampling": lambda case, x: FUNCTIONS[case["function"]](case, x[0])}
