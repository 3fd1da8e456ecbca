"""Compiles every case for one target and reads what came out."""

import importlib
import pkgutil
from collections.abc import Iterator

from triton.runtime.jit import JITFunction

import repkernels.kernels
from tests.instructions.cases import NOTHING, cases
from tests.instructions.compiled import Compiled, launches
from tests.instructions.forbidden import FORBIDDEN, NOT_COMPILED
from tests.instructions.rules import dots, violations


def check(target: str) -> tuple[str, int, set[str], list[str]]:
    """(target, kernels compiled, their names, violations) of every case on `target`."""
    found, names, count = [], set(), 0
    for case in cases(target):
        try:
            with launches(target) as compiled:
                case.start()
        except Exception as error:
            found.append(f"{target}: {case.name}: does not compile: {str(error).strip().splitlines()[-1]}")
            continue
        count += len(compiled)
        for c in compiled:
            names.add(c.kernel)
            found += [f"{target}: {case.name}: {c.kernel}: {v}" for v in _violations(c, case.need, case.may)]
    missing = sorted(set(kernels()) - names - ABSENT.get(target[:2], set()))
    return target, count, names, found + [f"{target}: {name} is checked by no case" for name in missing]


def _violations(c: Compiled, need: dict[str, frozenset[str]], may: dict[str, frozenset[str]]) -> Iterator[str]:
    needed = need.get(c.kernel, NOTHING)
    allowed = may.get(c.kernel, needed)
    yield from violations(c, allowed)
    yield from (f"ir: no product of {kind} tiles" for kind in sorted(needed - set(dots(c))))
    if "i8" in needed and dots(c)["f16"] > 1:
        yield "ir: more half-precision products than that of the sign classes"


# fp32 products of tiles have no one order on AMD, so the kernel built on them is not launched there.
ABSENT = {"gf": {"ordered_kernel"}}


def kernels() -> list[str]:
    """The name of every kernel of the library, so that none is left out."""
    names = []
    for module in pkgutil.iter_modules(repkernels.kernels.__path__):
        members = vars(importlib.import_module(f"repkernels.kernels.{module.name}"))
        names += [n for n, m in members.items() if isinstance(m, JITFunction) and n.endswith("_kernel")]
    return names


def check_forbidden(target: str) -> tuple[str, int, set[str], list[str]]:
    """As `check`, for the kernels that each do one forbidden thing: found are those that no rule caught."""
    found, caught = [], set()
    for name, start in FORBIDDEN.items():
        if (name, target) in NOT_COMPILED:
            continue
        with launches(target) as compiled:
            start()
        places = {v.split(":")[0] for c in compiled for v in violations(c)}
        if not places:
            found.append(f"{target}: {name} passes the checks")
        caught |= {f"{name} in {place}" for place in places}
    return target, len(FORBIDDEN), caught, found
