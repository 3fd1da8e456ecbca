"""The golden cases, package data that `reference/` computed: what every device must reproduce."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

Case = dict[str, Any]


def cases(op: str | None = None, contract: str | None = None) -> Iterator[Case]:
    """The cases of an operation (a gradient's operation is its forward's) and contract; all without them.

    The demo's digests are no cases: `demo` and `llm.chat_demo.recorded` return them.
    """
    for path in sorted(files("repkernels.verify").joinpath("golden").iterdir(), key=lambda p: p.name):
        if not path.name.endswith(".json") or path.name in ("demo.json", "chat.json"):
            continue
        for case in json.loads(path.read_text()):
            if op in (None, operation(case)) and contract in (None, case.get("contract")):
                yield case


def operation(case: Case) -> str:
    """The public operation that a case belongs to."""
    return str(case["op"]).removesuffix("_grad").removesuffix("_container")


def title(case: Case) -> str:
    """What a person reads of a case: operation, kind, shapes."""
    shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in case["shapes"])
    options = [str(case[key]) for key in ("function", "reduction", "options") if key in case]
    return " ".join([case["op"], case.get("kind", ""), shapes, *options]).replace("  ", " ")


def demo(network: str) -> dict[str, str]:
    """The digests of the initial model, trained model and test logits of the demo's "mlp" or "cnn"."""
    cases = json.loads(files("repkernels.verify").joinpath("golden", "demo.json").read_text())
    results = {case["op"]: case["results"] for case in cases}["demo" if network == "mlp" else f"demo_{network}"]
    return {name: result["digest"] for name, result in results.items()}
