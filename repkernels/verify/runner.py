"""All checks of a device, one after another."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from repkernels.contract import NAMES
from repkernels.verify import attention, catalogue, convolutions, golden, invariance, rows

# Checks of contractions under a contract.
CONTRACTIONS = {"matmul": invariance, "conv": convolutions, "attention": attention}


@dataclass(frozen=True)
class Check:
    """One thing to prove. `run` returns None, or what differs first."""

    name: str
    op: str
    contract: str
    dtype: str
    run: Callable[[], str | None]


@dataclass(frozen=True)
class Outcome:
    """A check that was run; `message` is empty if it held."""

    check: Check
    message: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the check held."""
        return not self.message


def operations() -> list[str]:
    """The names that `op` may have."""
    return sorted({catalogue.operation(case) for case in catalogue.cases()})


def checks(device: torch.device, op: str | None = None, contract: str | None = None) -> list[Check]:
    """The checks for a device, of one operation or contract or of all.

    `native` has no golden case, since its bits belong to one GPU model; its invariances are checked on GPUs. On a CPU
    it is `ordered`.
    """
    found = [_golden(case, device, None) for case in catalogue.cases(op, contract)]
    if device.type == "cuda":
        for engine in invariance.other_engines(device):
            fixed = (case for case in catalogue.cases(op, contract) if case.get("contract", "").startswith("fixed"))
            found += [_golden(case, device, engine) for case in fixed]
    for contraction in CONTRACTIONS:
        for name in NAMES:
            wanted = op in (None, contraction) and contract in (None, name)
            if wanted and not (name == "native" and device.type == "cpu"):
                found += _invariances(contraction, name, device)
    for name in rows.OPERATIONS:
        if op in (None, name) and contract is None:
            found += _row_invariances(name, device)
    return found


def sample(found: list[Check], every: int) -> list[Check]:
    """The first of each operation and contract, and each `every`-th one after it."""
    places: dict[tuple[str, str], Iterator[int]] = {}
    return [c for c in found if not next(places.setdefault((c.op, c.contract), itertools.count())) % every]


def run(selected: list[Check]) -> Iterator[Outcome]:
    """Runs checks in order. One that raises has failed, and its message is the error."""
    for check in selected:
        start = time.perf_counter()
        try:
            message = check.run() or ""
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        yield Outcome(check, message, time.perf_counter() - start)


def _golden(case: catalogue.Case, device: torch.device, engine: str | None) -> Check:
    def compare() -> str | None:
        if engine is None:
            return golden.differing(case, device)
        with invariance.use_engine(engine):
            return golden.differing(case, device)

    name = catalogue.title(case) + (f" [{engine}]" if engine else "")
    return Check(name, catalogue.operation(case), case.get("contract", ""), case["dtype"], compare)


def _invariances(op: str, contract: str, device: torch.device) -> Iterator[Check]:
    for dtype in _dtypes(op, contract):
        for name, check in CONTRACTIONS[op].checks(contract, device):
            yield Check(name, op, contract, dtype, functools.partial(check, contract, dtype, device))


def _row_invariances(op: str, device: torch.device) -> Iterator[Check]:
    for dtype in ("float32", "bfloat16"):
        for name, check in rows.checks(device):
            yield Check(name, op, "", dtype, functools.partial(check, op, dtype, device))


def _dtypes(op: str, contract: str) -> tuple[str, ...]:
    if contract == "native":
        return "bfloat16", "float16"
    single = ("float32", "bfloat16", "float16")
    return (*single, "float64") if contract == "ordered" and op != "attention" else single
