"""The golden catalogue: `python -m reference.golden [FILE ...]` writes it, with `--check` compares it with a fresh one.

Each case names its operation, contract, format, inputs (SPEC.md, "Golden inputs") and results: digest and, up to 8192
elements, the bits themselves. `native` has no golden case: its bits belong to one GPU model.
"""

import argparse
import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference import cnn, cross_entropy, digest, formats, inputs, matmul, mlp, philox, relu, sgd
from reference import sum as summation
from reference.cases import FAMILIES

DIRECTORY = Path(__file__).parent.parent / "repkernels" / "verify" / "golden"
KEPT = 8192
HALF_AND_SINGLE = ("float32", "bfloat16", "float16")

Case = dict[str, Any]


def result(values: np.ndarray, dtype: str) -> Case:
    """One result of a case: format, shape, digest, and the bits if they are few."""
    pattern = values if dtype in ("int64", "bool") else formats.bits(values, dtype)
    entry: Case = {"dtype": dtype, "shape": list(values.shape), "digest": digest.tensor(values, dtype)}
    if values.size <= KEPT:
        little = pattern.astype(pattern.dtype.newbyteorder("<")).tobytes()
        entry["bits"] = base64.b64encode(little).decode()
    return entry


def contraction_cases() -> Iterator[Case]:
    """Every shape and kind of matmul and linear under every contract and format it has."""
    for contract in matmul.CONTRACTS:
        for dtype in (*HALF_AND_SINGLE, "float64") if contract == "ordered" else HALF_AND_SINGLE:
            for op, kind, shapes in _contractions(contract, dtype):
                yield {"op": op, "contract": contract, "dtype": dtype, "kind": kind, "shapes": shapes}


def _contractions(contract: str, dtype: str) -> Iterator[tuple[str, str, list[list[int]]]]:
    def plain(m: int, k: int, n: int) -> list[list[int]]:
        return [[m, k], [k, n]]

    yield "matmul", "ordinary", plain(37, 129, 53)
    for kind in ("spread", "subnormal", "tiny", "huge", "zeros", "nonfinite", "extremes", "ties"):
        yield "matmul", kind, plain(19, 41, 23)
    # Products alone that round to a subnormal or to a zero of either sign.
    yield "matmul", "tiny", plain(19, 1, 23)
    # One of everything, sizes around tiles, nothing at all, one row.
    for m, k, n in ((1, 1, 1), (3, 5, 7), (65, 63, 17), (3, 0, 4), (0, 5, 3), (3, 5, 0), (1, 300, 70)):
        yield "matmul", "ordinary", plain(m, k, n)
    # Borders of the chunks of `ordered`.
    for k in (4095, 4096, 4097, 12289):
        yield "matmul", "ordinary", plain(2, k, 3)
    if dtype != "float64":
        # A constant fills every accumulator as fast as K allows.
        for k in (1024, 65536, 131072):
            yield "matmul", "constant", plain(3, k, 2)
        yield "matmul", "ordinary", plain(2, 70001, 3)
        if contract == "fixed32":
            yield "matmul", "constant", plain(2, 131073, 3)
            yield "matmul", "constant", plain(2, 262149, 2)
            yield "matmul", "ordinary", plain(3, 262149, 2)
    for shapes in ([[129], [129]], [[129], [129, 5]], [[6, 129], [129]], [[129], [3, 129, 5]]):
        yield "matmul", "ordinary", shapes
    for shapes in ([[2, 3, 5, 7], [3, 7, 4]], [[4, 1, 3, 9], [2, 9, 5]], [[3, 5, 7], [7, 4]]):
        yield "matmul", "ordinary", shapes
        yield "matmul_grad", "ordinary", shapes
    for shapes in ([[37, 29], [29, 31]], [[29], [29]], [[29], [29, 5]], [[6, 29], [29]], [[3, 0], [0, 4]]):
        yield "matmul_grad", "ordinary", shapes
    for kind in ("spread", "zeros", "nonfinite", "tiny"):
        yield "matmul_grad", kind, plain(11, 13, 17)
    # x, weight, bias.
    for kind in ("ordinary", "spread", "zeros", "nonfinite", "huge"):
        yield "linear", kind, [[9, 31], [14, 31], [14]]
    for shapes in ([[3, 5, 33], [8, 33], [8]], [[33], [8, 33], [8]], [[4, 0], [6, 0], [6]]):
        yield "linear", "ordinary", shapes
        yield "linear_grad", "ordinary", shapes
    yield "linear_grad", "nonfinite", [[9, 31], [14, 31], [14]]
    yield "linear_grad", "spread", [[2, 9, 31], [14, 31], [14]]


def other_cases() -> Iterator[Case]:
    """Sums, losses, selections, optimizer steps, digests and draws."""
    for dtype in (*HALF_AND_SINGLE, "float64"):
        for rows in (0, 1, 2, 3, 17, 1000, 1024, 1025, 5000, 65536, 65537, 150000):
            yield {"op": "sum", "dtype": dtype, "kind": "ordinary", "shapes": [[rows, 3]]}
        for kind in ("spread", "subnormal", "huge", "zeros", "nonfinite", "ties"):
            yield {"op": "sum", "dtype": dtype, "kind": kind, "shapes": [[777, 5]]}
        yield {"op": "sum", "dtype": dtype, "kind": "spread", "shapes": [[70000, 2]]}
        for kind in ("ordinary", "zeros", "nonfinite", "subnormal"):
            yield {"op": "relu", "dtype": dtype, "kind": kind, "shapes": [[23, 41]]}
            yield {"op": "digest", "dtype": dtype, "kind": kind, "shapes": [[7, 0, 3] if kind == "zeros" else [7, 5]]}
    for dtype in HALF_AND_SINGLE:
        for kind, rows, classes, reduction in (
            ("logits", 64, 10, "mean"), ("logits", 17, 10, "sum"), ("logits", 17, 10, "none"), ("logits", 1, 1, "mean"),
            ("ordinary", 5, 1000, "mean"), ("logits", 3, 1025, "none"), ("logits", 2, 5003, "mean"),
            ("spread", 29, 33, "none"), ("nonfinite", 29, 33, "none"), ("zeros", 9, 7, "mean"), ("huge", 9, 7, "none"),
            ("subnormal", 9, 7, "sum"),
        ):  # fmt: skip
            shapes = [[rows, classes]]
            yield {"op": "cross_entropy", "dtype": dtype, "kind": kind, "shapes": shapes, "reduction": reduction}
        for options in (
            {"lr": 0.05}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.01, "momentum": 0.9, "nesterov": True},
            {"lr": 0.3, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01},
            {"lr": 1e-3, "weight_decay": 5e-4, "maximize": True},
        ):  # fmt: skip
            yield {"op": "sgd", "dtype": dtype, "kind": "ordinary", "shapes": [[13, 21]], "options": options}
        yield {
            "op": "sgd",
            "dtype": dtype,
            "kind": "spread",
            "shapes": [[257]],
            "options": {"lr": 0.7, "momentum": 0.9},
        }
    for fan_out, fan_in in ((1, 1), (10, 64), (128, 65)):
        yield {"op": "init", "dtype": "float32", "shapes": [[fan_out, fan_in]]}
    for count in (0, 1, 10, 1797, 5000):
        yield {"op": "permutation", "dtype": "int64", "shapes": [[count]]}
    # Enough exponentials that another coefficient in their sequence would show.
    yield {"op": "cross_entropy", "dtype": "float32", "kind": "logits", "shapes": [[240, 33]], "reduction": "sum"}
    yield {"op": "digest_container", "dtype": "float32", "kind": "ordinary", "shapes": [[2, 3]]}


def _matmul(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": matmul.matmul(x[0], x[1], case["dtype"], case["contract"])}


def _matmul_grad(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    shape = np.matmul(*(np.zeros(s) for s in case["shapes"])).shape
    grad = _operand(case, shape, 3)
    grad_a, grad_b = matmul.gradients(grad, x[0], x[1], case["dtype"], case["contract"])
    return {"grad_a": grad_a, "grad_b": grad_b}


def _linear(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": matmul.linear(x[0], x[1], x[2], case["dtype"], case["contract"])}


def _linear_grad(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    grad = _operand(case, (*x[0].shape[:-1], len(x[1])), 3)
    grad_x, grad_weight = matmul.gradients(grad, x[0], x[1].T, case["dtype"], case["contract"])
    return {"grad_a": grad_x, "grad_b": grad_weight.T, "grad_bias": matmul.bias_gradient(grad, case["dtype"])}


def _sum(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": summation.sum_rows(x[0], case["dtype"])}


def _relu(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": relu.forward(x[0]), "grad": relu.backward(_operand(case, x[0].shape, 3), x[0])}


def _cross_entropy(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    rows, classes = x[0].shape
    target = inputs.targets(classes, rows, case["seed"], 1)
    loss = cross_entropy.forward(x[0], target, case["dtype"], case["reduction"])
    # The loss's own gradient is 1 except per row, where it is an operand.
    grad = _operand({**case, "kind": "ordinary"}, (rows,), 3) if case["reduction"] == "none" else np.float32(1)
    return {
        "loss": np.asarray(loss),
        "grad": cross_entropy.backward(grad, x[0], target, case["dtype"], case["reduction"]),
    }


def _sgd(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    p, v = x[0], None
    for stream in (1, 2, 3):
        p, v = sgd.step(p, _operand(case, p.shape, stream), v, case["dtype"], **case["options"])
    return {"out": p}


def _init(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    (fan_out, fan_in) = case["shapes"][0]
    weight, bias = mlp.linear_init(fan_in, fan_out, case["seed"], 0)
    return {"weight": weight, "bias": bias}


def _permutation(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": philox.permutation(case["seed"], 0, case["shapes"][0][0])}


def _digest(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": x[0]}


COMPUTE: dict[str, Callable[[Case, list[np.ndarray]], dict[str, np.ndarray]]] = {
    "matmul": _matmul, "matmul_grad": _matmul_grad, "linear": _linear, "linear_grad": _linear_grad, "sum": _sum,
    "relu": _relu, "cross_entropy": _cross_entropy, "sgd": _sgd, "init": _init, "permutation": _permutation,
    "digest": _digest,
}  # fmt: skip
for family in FAMILIES:
    COMPUTE.update(family.COMPUTE)


def _operand(case: Case, shape: tuple[int, ...], stream: int) -> np.ndarray:
    return inputs.operand(case["kind"], case["dtype"], tuple(shape), case["seed"], stream)


def _container(case: Case, x: list[np.ndarray]) -> str:
    """The digest of {"weight": x, "nested": {"list": [x, (1, 2.5)], "none": None}, "flag": True, "text": "é"}."""
    tensor, scalar = digest.tensor(x[0], case["dtype"]), digest.scalar
    pair = digest.sequence([scalar(1), scalar(2.5)])
    nested = digest.mapping({"list": digest.sequence([tensor, pair]), "none": scalar(None)})
    return digest.mapping({"weight": tensor, "nested": nested, "flag": scalar(True), "text": scalar("é")})


def completed(case: Case) -> Case:
    """The case with its results. A result that is not of the case's format comes as a pair (values, dtype)."""
    x = [_operand(case, shape, stream) for stream, shape in enumerate(case["shapes"])] if "kind" in case else []
    if case["op"] == "digest_container":
        return {**case, "results": {"out": {"digest": _container(case, x)}}}
    values = COMPUTE[case["op"]](case, x)
    pairs = {name: v if isinstance(v, tuple) else (v, case["dtype"]) for name, v in values.items()}
    return {**case, "results": {name: result(*pair) for name, pair in pairs.items()}}


def files(names: Sequence[str] = ()) -> Iterator[tuple[str, list[Case]]]:
    """The catalogue's files: contractions by operation and contract, everything else by operation, and the demo.

    names: only these of them; all if empty.
    """
    groups: dict[str, list[Case]] = {}
    families = itertools.chain.from_iterable(family.cases() for family in FAMILIES)
    for case in (*contraction_cases(), *other_cases(), *families):
        op = str(case["op"])
        group = groups.setdefault("-".join([op.split("_grad")[0], str(case.get("contract", ""))]).strip("-"), [])
        # A case's seed is its place in its file, so a new case at the end changes no other.
        group.append({**case, "seed": len(group)})
    for name, cases in groups.items():
        if not names or name in names:
            yield name, [completed(case) for case in cases]
    if not names or "demo" in names:
        networks = {"demo": mlp.digests(), "demo_cnn": cnn.digests()}
        yield (
            "demo",
            [
                {
                    "op": name,
                    "dtype": "float32",
                    "contract": "fixed24",
                    "results": {what: {"digest": value} for what, value in found.items()},
                }
                for name, found in networks.items()
            ],
        )


def main() -> int:
    """Writes the catalogue or checks it; 1 if the check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FILE", help="without .json; all by default")
    parser.add_argument("--check", action="store_true", help="compare with the stored catalogue and write nothing")
    arguments = parser.parse_args()
    DIRECTORY.mkdir(exist_ok=True)
    different = []
    for name, cases in files(arguments.names):
        text = "[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases) + "\n]\n"
        path = DIRECTORY / f"{name}.json"
        if not arguments.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            different.append(name)
    for name in different:
        print(f"{name}: differs from {DIRECTORY / name}.json")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
