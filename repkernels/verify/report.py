"""`repkernels verify`: the checks with progress, a table by operation and contract, and a JSON file."""

import json
import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from repkernels import NUMERICS_VERSION
from repkernels.contract import NAMES
from repkernels.devices import named_device, writable
from repkernels.verify.runner import Check, Outcome, checks, operations, run, sample


def verify_command(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    op: Annotated[str, typer.Option(help="Only this operation.")] = "",
    contract: Annotated[str, typer.Option(help="Only this contract.")] = "",
    every: Annotated[
        int,
        typer.Option("--sample", metavar="N", min=1, help="Only each N-th check of an operation; 1 is all of them."),
    ] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every result here.")] = None,
) -> None:
    """Proves on this device that results have the reference's bits, whatever batch, tile, engine or layout."""
    if context.invoked_subcommand is not None:
        return
    where = named_device(device)
    _refuse(op, contract)
    writable(json_file)
    selected = sample(checks(where, op or None, contract or None), every)
    if not selected:
        raise typer.BadParameter("nothing to check: this device has no check of this --op under this --contract")
    console = Console()
    outcomes = _with_progress(selected, console)
    machine = describe(where) | {"sample": every}
    console.print(_table(outcomes, machine))
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(outcomes, machine), indent=1) + "\n")
    failed = [outcome for outcome in outcomes if not outcome.passed]
    for outcome in failed:
        check = outcome.check
        title = " ".join(part for part in (check.op, check.contract, check.dtype, check.name) if part)
        console.print(f"{title}: {outcome.message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} of {len(outcomes)} checks failed", style="bold red")
        raise typer.Exit(1)
    which = "All" if every == 1 else f"A sample (1 in {every} of each operation's):"
    console.print(f"{which} {len(outcomes)} checks hold", style="bold green")


def describe(device: torch.device) -> dict[str, Any]:
    """The device and the versions that ran, for people and for the JSON file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": str(device),
        "name": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numerics_version": NUMERICS_VERSION,
    }


def as_json(outcomes: list[Outcome], machine: dict[str, Any]) -> dict[str, Any]:
    """Every outcome, with the machine it was seen on."""
    results = [
        {
            "op": outcome.check.op,
            "contract": outcome.check.contract,
            "dtype": outcome.check.dtype,
            "name": outcome.check.name,
            "passed": outcome.passed,
            "message": outcome.message,
            "seconds": round(outcome.seconds, 4),
        }
        for outcome in outcomes
    ]
    return {**machine, "passed": all(outcome.passed for outcome in outcomes), "results": results}


def _refuse(op: str, contract: str) -> None:
    """One clear error before anything runs."""
    if op and op not in operations():
        raise typer.BadParameter(f"--op: expected one of {', '.join(operations())}, got {op!r}")
    if contract and contract not in NAMES:
        raise typer.BadParameter(f"--contract: expected one of {', '.join(NAMES)}, got {contract!r}")


def _with_progress(selected: list[Check], console: Console) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(selected))
        for outcome in run(selected):
            outcomes.append(outcome)
            check = outcome.check
            progress.update(task, advance=1, description=f"{check.op} {check.contract}".strip())
    return outcomes


def _table(outcomes: list[Outcome], machine: dict[str, Any]) -> Table:
    """A row per operation and contract: formats, checks, failures, seconds."""
    title = f"{machine['name']}, torch {machine['torch']}, NUMERICS_VERSION {machine['numerics_version']}"
    table = Table(title=title)
    for heading in ("operation", "contract", "formats"):
        table.add_column(heading)
    for heading in ("checks", "failed", "seconds"):
        table.add_column(heading, justify="right")
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.check.op, outcome.check.contract), []).append(outcome)
    for (op, contract), group in sorted(groups.items()):
        failed = sum(not outcome.passed for outcome in group)
        formats = ", ".join(dict.fromkeys(outcome.check.dtype for outcome in group))
        seconds = sum(outcome.seconds for outcome in group)
        table.add_row(
            op,
            contract or "-",
            formats,
            str(len(group)),
            str(failed),
            f"{seconds:.1f}",
            style="red" if failed else None,
        )
    return table
