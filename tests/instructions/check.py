"""Compiles every case for one target and reads what came out."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from triton.runtime.jit import JITFunction

from tests.instructions.case import FEW, Case, everything, few
from tests.instructions.cases import cases
from tests.instructions.compiled import TARGETS, Compiled, launches, modules
from tests.instructions.forbidden import FORBIDDEN, NOT_COMPILED
from tests.instructions.rules import dots, violations

# How names begin of cases that are compiled whole, by target; of the others each kernel is, at its first launch. All
# are on sm_90 and gfx942, but with --few. sm_89, sm_120 and gfx950 multiply tiles as sm_80 and gfx942 do.
WHOLE_OF_FEW = ("elementwise", "matmul")
WHOLE = {
    "sm_80": ("elementwise", "matmul"),
    "sm_100": ("elementwise", "matmul"),
    "sm_89": ("elementwise",),
    "sm_120": ("elementwise",),
    "gfx950": ("elementwise",),
}


class Report(NamedTuple):
    """What came of one target: how many kernels were compiled, their names, and what is wrong."""

    target: str
    compiled: int
    names: set[str]
    wrong: list[str]


def check(target: str) -> Report:
    """Every case on `target`."""
    report = Report(target, 0, set(), [])
    names = WHOLE_OF_FEW if os.environ.get(FEW) else WHOLE.get(target, "")
    for case in cases(target):
        compiled: list[Compiled] = []
        try:
            whole = case.name.startswith(names)
            with launches(target, None if whole else report.names) as compiled:
                case.start()
            wrong = list(_wrong(case, compiled, whole))
        except Exception as error:
            wrong = [f"does not compile: {_message(error)}"]
        report.wrong.extend(f"{target}: {case.name}: {what}" for what in wrong)
        report.names.update(c.kernel for c in compiled)
        report = report._replace(compiled=report.compiled + len(compiled))
    missing = kernels(target) - report.names
    report.wrong.extend(f"{target}: no case launches {name}" for name in sorted(missing))
    return report


def _wrong(case: Case, compiled: list[Compiled], whole: bool) -> Iterator[str]:
    for c in compiled:
        yield from (f"{c.kernel}: {what}" for what in violations(c, case.may, case.maximum, case.exp2))
        if "i8" in case.need and dots(c)["f16"] > 1:
            yield f"{c.kernel}: ir: more half-precision products than that of the sign classes"
    has = {kind for c in compiled for kind in dots(c)}
    if whole:
        yield from (f"ir: no product of {kind} tiles" for kind in sorted(case.need - has))


def _message(error: Exception) -> str:
    """The error under Triton's report of where in the source it arose."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[-300:]}"


def kernels(target: str) -> set[str]:
    """The kernels that launchers can start on `target`, by the name that every kernel has: `..._kernel`."""
    found = {
        name
        for module in modules()
        for name, member in vars(module).items()
        if isinstance(member, JITFunction) and name.endswith("_kernel")
    }
    hopper = {"hopper_kernel", "conv_hopper_kernel", "conv_native_hopper_kernel"}
    absent = {"conv_native_kernel"} if target == "sm_90" else hopper
    # Products of fp32 tiles have no one order on AMD's matrix cores; the chains written out there need no flags.
    tiles = {"ordered_kernel", "conv_ordered_kernel", "conv_weight_ordered_kernel", "nonfinite_rows_kernel"}
    tiles |= {"grouped_ordered_kernel", "weight_ordered_kernel"}
    # The first take a minute to compile, so they are on one target only; the others with --few not at all.
    slow = {"attention_fixed_kernel", "attention_planes_kernel", "attention_general_kernel"}
    slow |= {"attention_queries_backward_kernel", "attention_keys_backward_kernel"}
    if few():
        slow |= {"attention_native_query_gradient_kernel", "attention_native_key_gradient_kernel"}
        slow |= {"attention_delta_kernel", "attention_fixed_parts_kernel"}
    return found - absent - (tiles if TARGETS[target].hip else set()) - (set() if everything(target) else slow)


def check_forbidden(target: str) -> Report:
    """The kernels that each do one forbidden thing: wrong are those that no rule catches, in the IR or the assembly."""
    report = Report(target, 0, set(), [])
    for name, start in FORBIDDEN.items():
        if (name, target) in NOT_COMPILED:
            continue
        with launches(target) as compiled:
            start()
        caught = {what.split(":")[0] for c in compiled for what in violations(c)}
        report.names.update(f"{name} ({', '.join(sorted(caught))})" for _ in caught)
        if not caught:
            report.wrong.append(f"{target}: {name} passes the checks")
        report = report._replace(compiled=report.compiled + len(compiled))
    return report
