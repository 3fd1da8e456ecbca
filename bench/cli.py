"""`repkernels bench NAME`: measures, prints a table as it goes, keeps JSON and a plot."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from repkernels.devices import named_device, writable

from . import (
    benchmarks,  # noqa: F401  (registers them)
    isolated,
    llm_cli,
    machine,
    network_cli,
    perplexity,
    randomness_cli,
    report,
)
from .measure import ROUNDS
from .registry import REGISTRY

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
# With options of their own.
APART = {
    "llm": llm_cli.app,
    "networks": network_cli.app,
    "perplexity": perplexity.app,
    "randomness": randomness_cli.app,
}


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(REGISTRY)}.")],
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Few works; recorded only with --json.")] = False,
    only: Annotated[str, typer.Option("--filter", metavar="TEXT", help="Only works whose name has this text.")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="In a checkout: bench/results/NAME-DEVICE.json.")
    ] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Beside the JSON.")] = None,
) -> None:
    """Measures this library beside torch, in one run, on random data. Exit code 1 if something was not measured.

    `llm`, `networks`, `perplexity` and `randomness` have options of their own: `repkernels bench networks --help`.
    """
    writable(json_file)
    if name not in REGISTRY:
        raise typer.BadParameter(f"NAME: expected one of {', '.join([*REGISTRY, *APART])}, got {name!r}")
    where = named_device(device)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    about = machine.describe(where)
    works = [(i, work) for i, work in enumerate(REGISTRY[name](where, quick)) if only in work.name]
    if not works:
        raise typer.BadParameter(f"--filter: no work's name has {only!r}")
    if json_file is None and not quick and not only:
        json_file = recorded(name, about["device"])
    rows: list[dict[str, Any]] = []
    table = report.table(f"{name}: {about['device']}, torch {about['torch']}")
    for index, _ in track(works, "", console=console, transient=True):
        found = isolated.rows(name, where, quick, index, rounds=5 if quick else ROUNDS)
        report.add(table, found)
        rows += found
        if json_file is not None:
            # After each work, so that an interrupted run keeps what it has.
            report.write(json_file, about, name, rows)
    console.print(table)
    if json_file is not None:
        console.print(f"Recorded in {json_file}", highlight=False)
        plot_file = plot_file or json_file.with_suffix(".png")
    if plot_file is not None:
        report.plot(plot_file, about, rows, console)
    failed = [row for row in rows if "error" in row]
    for row in failed:
        console.print(f"{row['work']}, {row['variant']}: {row['error']}", style="red", markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)


def recorded(name: str, device: str) -> Path | None:
    """Where a full run is kept: among the checkout's results, if this is a checkout."""
    results = Path(__file__).parent / "results"
    return results / f"{name}-{machine.slug(device)}.json" if results.is_dir() else None


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line with these arguments, or the process's own."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in APART:
        APART[arguments[0]](args=arguments[1:], prog_name=f"repkernels bench {arguments[0]}")
    else:
        app(args=arguments, prog_name="repkernels bench")
