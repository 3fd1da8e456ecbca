"""`repkernels bench networks`: the time of a training step of whole networks, torch's and this library's."""

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from repkernels.devices import named_device, writable

from . import machine, report
from .network_steps import DETERMINISTIC, LAYOUTS, TORCH, Entry, Sizes, pair, rows
from .networks import NETWORKS

CONTRACTS = "fixed24/fixed32,fixed24,ordered"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def networks_command(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    networks: Annotated[str, typer.Option(help=f"Of {', '.join(NETWORKS)}; all if left out.")] = "",
    contracts: Annotated[str, typer.Option(help="Contracts, NAME or FORWARD/GRADIENT.")] = CONTRACTS,
    layouts: Annotated[str, typer.Option(help=f"Of {', '.join(LAYOUTS)}.")] = ",".join(LAYOUTS),
    our_layouts: Annotated[str, typer.Option(help="Those of this library's entries; --layouts if left out.")] = "",
    ours_only: Annotated[bool, typer.Option("--ours-only", help="Leave torch's two ways out: no ratios.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Images of a step.")] = 64,
    size: Annotated[int, typer.Option(min=32, help="Pixels of an image's side.")] = 224,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each entry.")] = 15,
    eager: Annotated[bool, typer.Option("--eager/--no-eager", help="Time steps as Python starts them.")] = True,
    graph: Annotated[bool, typer.Option("--graph/--no-graph", help="Time steps as one CUDA graph (GPU).")] = True,
    warm_only: Annotated[bool, typer.Option("--warm-only", help="One step of each entry, to fill caches.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Entries at a time; with --warm-only, on a GPU.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A batch of 2, 32 pixels, 2 steps.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="In a checkout: bench/results/networks-DEVICE.json.")
    ] = None,
) -> None:
    """Times training steps (forward, loss, backward, SGD) in fp32, TF32 off, on random images.

    torch: cuDNN chooses by measuring. torch deterministic: torch.use_deterministic_algorithms. Then, under each
    contract, `repkernels.convert`. The ratio is to torch's better layout in the same mode: 1.2 takes 1.2 times as long.
    Exit code 1 if something was not measured.
    """
    writable(json_file)
    where = named_device(device)
    chosen = _names("--networks", networks or ",".join(NETWORKS), NETWORKS)
    forms = _names("--layouts", layouts, LAYOUTS)
    our_forms = _names("--our-layouts", our_layouts, LAYOUTS) or forms
    ways = [] if ours_only else [TORCH, DETERMINISTIC]
    for way in filter(None, contracts.split(",")):
        try:
            pair(way)
        except ValueError as error:
            raise typer.BadParameter(f"--contracts: {error}") from None
        ways.append(way)
    if jobs > 1 and not (warm_only and where.type == "cuda"):
        raise typer.BadParameter("--jobs: entries are timed one at a time; only --warm-only on a GPU takes more")
    modes = ("eager",) * eager + ("graph",) * (graph and where.type == "cuda")
    if not modes:
        raise typer.BadParameter("--no-eager: nothing is left to time")
    sizes = Sizes(2, 32, 2) if quick else Sizes(batch, size, steps)
    about = machine.describe(where)
    if json_file is None and not (quick or warm_only or networks or ours_only):
        results = Path(__file__).parent / "results"
        json_file = results / f"networks-{machine.slug(about['device'])}.json" if results.is_dir() else None
    entries = [
        Entry(network, way, form)
        for network, way in itertools.product(chosen, ways)
        for form in (forms if way in (TORCH, DETERMINISTIC) else our_forms)
    ]
    console = Console()
    if not console.is_terminal:
        console.width = 120
    found: list[dict[str, Any]] = []
    for some in _all(entries, sizes, where, () if warm_only else modes, jobs):
        found += some
        add_ratios(found)
        for row in some:
            # As it goes, so that a run that is cut short has said what it knows.
            console.print(_line(row), highlight=False, soft_wrap=True, markup=False)
        if json_file is not None:
            report.write(json_file, about, "networks", found)
    if not warm_only:
        console.print(table(found, f"{about['device']}, torch {about['torch']}, batch {sizes.batch}, {sizes.size} px"))
    if json_file is not None:
        console.print(f"Recorded in {json_file}", highlight=False)
    if any("error" in row for row in found):
        raise typer.Exit(1)


def add_ratios(found: list[dict[str, Any]]) -> None:
    """Time over that of torch's better layout, for the same network and mode, where there is one."""
    for row in found:
        base = [
            other["milliseconds"]
            for other in found
            if other["way"] == TORCH and "milliseconds" in other and "milliseconds" in row
            and (other["network"], other["mode"]) == (row["network"], row["mode"])
        ]  # fmt: skip
        if base:
            row["ratio"] = float(f"{row['milliseconds'] / min(base):.4g}")


def table(found: list[dict[str, Any]], title: str) -> Table:
    """The better layout of each network and way: milliseconds and the ratio to torch, by mode."""
    made = Table(title=title, title_justify="left")
    modes = list(dict.fromkeys(row["mode"] for row in found))
    made.add_column("network")
    made.add_column("way")
    for mode in modes:
        made.add_column(f"{mode}, ms", justify="right")
        made.add_column("x torch", justify="right")
    before = ""
    for network, way in dict.fromkeys((row["network"], row["way"]) for row in found):
        cells = []
        for mode in modes:
            mine = [r for r in found if (r["network"], r["way"], r["mode"]) == (network, way, mode)]
            times = [r for r in mine if "milliseconds" in r]
            best = min(times, key=lambda r: r["milliseconds"], default=None)
            cells += ["failed", ""] if best is None else [f"{best['milliseconds']:g}", f"{best.get('ratio', '-')}"]
        made.add_row("" if network == before else network, way, *cells)
        before = network
    return made


def _line(row: dict[str, Any]) -> str:
    what = f"{row['network']} {row['layout']:13} {row['way']:19} {row.get('mode', 'one step'):8}"
    if "error" in row:
        return f"{what} {row['error']}"
    if "milliseconds" not in row:
        return f"{what} {row['first_seconds']} s"
    spread = f"{row['milliseconds']:g} ms ({row['least']:g}..{row['most']:g})"
    return f"{what} {spread}, x torch {row.get('ratio', '-')}, first steps {row['first_seconds']} s"


def _names(option: str, given: str, known: dict[str, Any]) -> list[str]:
    names = [name for name in given.split(",") if name]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{option}: expected some of {', '.join(known)}, got {name!r}")
    return names


def _all(
    entries: list[Entry], sizes: Sizes, device: torch.device, modes: tuple[str, ...], jobs: int
) -> Iterator[list[dict[str, Any]]]:
    run = partial(_isolated, sizes=sizes, device=device, modes=modes)
    if jobs == 1:
        yield from map(run, entries)
        return
    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(run, entries)


def _isolated(entry: Entry, sizes: Sizes, device: torch.device, modes: tuple[str, ...]) -> list[dict[str, Any]]:
    """An entry's rows; on a GPU from a process of its own, whose faults, memory and settings end with it."""
    if device.type == "cpu":
        before = torch.are_deterministic_algorithms_enabled()
        try:
            return list(rows(entry, sizes, device, modes))
        finally:
            torch.use_deterministic_algorithms(before)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([f"{__package__}.network_steps"])
    with ProcessPoolExecutor(1, mp_context=server) as executor:
        try:
            return executor.submit(_rows, entry, sizes, str(device), modes).result()
        except BrokenProcessPool:
            return [{**entry._asdict(), "mode": mode, "error": "the process ended"} for mode in modes or ("",)]


def _rows(entry: Entry, sizes: Sizes, device: str, modes: tuple[str, ...]) -> list[dict[str, Any]]:
    return list(rows(entry, sizes, torch.device(device), modes))
