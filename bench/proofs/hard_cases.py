"""tests/hard_cases.json: for each function the inputs whose results are hardest to round, with those results.

{"log": {"3c413d3a": "c08e158f", ...}, ...}: fp32 bits of x and, by mpmath, of RN32(f(x)). Tests go through them on
every backend; the proofs on a CPU add them to their samples, and those on a GPU find them (`--hard-cases`).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from reference import unary

FILE = Path(__file__).parent.parent.parent / "tests" / "hard_cases.json"


def known() -> dict[str, dict[str, str]]:
    """What the file has; nothing where it is missing."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def add(found: Mapping[str, Iterable[str]]) -> None:
    """Adds inputs of each function, as hexadecimal bits."""
    cases = known()
    for name, inputs in found.items():
        cases.setdefault(name, {}).update({x: f"{unary.value(name, int(x, 16)):08x}" for x in inputs})
    ordered = {name: dict(sorted(cases[name].items())) for name in sorted(cases)}
    FILE.write_text(json.dumps(ordered, indent=0) + "\n")
