"""`repkernels audit SCRIPT`: a Python script's operations."""

import contextlib
import json
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from repkernels.audit.record import Recorder
from repkernels.devices import writable
from repkernels.reproducible import reproducible


def audit_command(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", exists=True, dir_okay=False, help="A Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")] = None,
    inside: Annotated[
        bool, typer.Option("--reproducible", help="Run it inside of repkernels.reproducible(strict=False).")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every row here.")] = None,
) -> None:
    """Runs a script and lists its operations: exit code 1 if one of them is not reproducible."""
    writable(json_file)
    recorder = Recorder()
    before, sys.argv = sys.argv, [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.resolve().parent))
    code: object = 0
    try:
        with reproducible(strict=False) if inside else contextlib.nullcontext(), recorder:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
        sys.path.remove(str(script.resolve().parent))
    console, report = Console(), recorder.report
    if not console.is_terminal:
        console.width = 160
    console.print(report)
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if code:
        console.print(f"{script}: ended with exit code {code}", style="bold red", markup=False)
        raise typer.Exit(2)
    refused = len({row.operation for row in report.refused})
    if refused:
        console.print(f"{refused} operations are not reproducible", style="bold red")
        raise typer.Exit(1)
    console.print("Every operation is reproducible", style="bold green")
