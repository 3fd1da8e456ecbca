"""`repkernels bench llm`: tokens a second under each contract beside stock transformers."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from repkernels.contract import resolve
from repkernels.devices import named_device, writable

from . import llm, machine, report

SHAPES = {"8b": "llama-8b", "1.7b": "1.7b", "135m": "135m", "tiny": "tiny"}
QUICK = llm.Sizes(2, 12, 3)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def llm_command(
    shape: Annotated[str, typer.Option(help=f"Of random weights: {', '.join(SHAPES)}.")] = "",
    contracts: Annotated[str, typer.Option(help="Contracts; native,fixed16 on a GPU, fixed16 on a CPU.")] = "",
    stock: Annotated[bool, typer.Option("--stock/--no-stock", help="Stock transformers too, for ratios.")] = True,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    requests: Annotated[int, typer.Option(min=1, help="Of the batch.")] = 64,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a request.")] = 1024,
    new: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 256,
    quick: Annotated[bool, typer.Option("--quick", help="2 requests of 12 tokens; recorded only with --json.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="In a checkout: bench/results/llm-SHAPE-DEVICE.json.")
    ] = None,
) -> None:
    """Times a Llama of random bf16 weights. batch: continuous batching of all requests at once, with CUDA graphs and
    without. stream: a step of one request, under a CUDA graph on a GPU; stock transformers' with its static cache.

    ratio: speed relative to stock transformers with sdpa, in the same work. of copy: the time in which memory is copied
    as fast as this run could copy it, for the bytes of the weights, over a step's. Exit code 1 if something was not
    measured.
    """
    writable(json_file)
    where = named_device(device)
    shape = shape or ("tiny" if quick else "8b" if where.type == "cuda" else "135m")
    if shape not in SHAPES:
        raise typer.BadParameter(f"--shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
    ways = [
        name for name in (contracts or ("native,fixed16" if where.type == "cuda" else "fixed16")).split(",") if name
    ]
    for way in ways:
        try:
            resolve(way, torch.bfloat16, where.type)
        except ValueError as error:
            raise typer.BadParameter(f"--contracts: {error}") from None
    sizes = QUICK if quick else llm.Sizes(requests, prompt, new)
    about = machine.describe(where)
    results = Path(__file__).parent / "results"
    if json_file is None and not quick and results.is_dir():
        json_file = results / f"llm-{machine.slug(shape)}-{machine.slug(about['device'])}.json"
    console = Console()
    if not console.is_terminal:
        console.width = 120
    model = llm.built(SHAPES[shape], where)
    weights = llm.weight_bytes(model)
    bandwidth = llm.bytes_per_second(where, 2**31 if where.type == "cuda" else 2**24)
    head = about | {
        "shape": shape, **sizes._asdict(), "weight_bytes": weights,
        "copy_gigabytes_per_second": round(bandwidth / 1e9, 1),
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    for way in [llm.STOCK] * stock + ways:
        for row in llm.rows(model, way, sizes, where):
            found.append(row)
            llm.add_ratios(found, weights, bandwidth)
            console.print(_line(row), highlight=False, soft_wrap=True, markup=False)
            if json_file is not None:
                # After each, so that an interrupted run keeps what it has.
                report.write(json_file, head, "llm", found)
    console.print(_table(found, f"{shape}, {about['device']}, torch {about['torch']}"))
    if json_file is not None:
        console.print(f"Recorded in {json_file}", highlight=False)
    if any("error" in row for row in found):
        raise typer.Exit(1)


def _line(row: dict[str, Any]) -> str:
    what = row.get("error") or ", ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, float))
    return f"{row['work']} {row['mode']} {row['way']}: {what}"


def _table(found: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("work", "mode", "way"):
        table.add_column(heading)
    for heading in ("tokens/s", "ms a step", "x stock", "of copy"):
        table.add_column(heading, justify="right")
    for row in found:
        keys = ("tokens_per_second", "milliseconds", "ratio", "of_copy")
        cells = [f"{row[k]:g}" if k in row else "" for k in keys] if "error" not in row else ["failed", "", "", ""]
        table.add_row(row["work"], row["mode"], row["way"], *cells)
    return table
