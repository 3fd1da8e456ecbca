"""`repkernels verify llm`: is a prompt's answer its own? Progress, a table, a JSON file, exit code 1 if it is not."""

import gc
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from repkernels.contract import NAMES
from repkernels.devices import named_device, writable
from repkernels.llm.models import DTYPES


def llm_command(
    model: Annotated[
        str,
        typer.Option(help="smollm2, random:tiny, a directory or name that transformers loads. Of a server: its name."),
    ] = "",
    contract: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "fixed16",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16; float32 on a CPU, else bfloat16.")] = "",
    server: Annotated[str, typer.Option(metavar="URL", help="Ask this server, by OpenAI's client, instead.")] = "",
    stock: Annotated[
        bool, typer.Option("--stock", help="Run transformers without us first, to see it differ.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option("--check", help="Only this check; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few and small, as for a CPU.")] = False,
    neighbours: Annotated[int, typer.Option(metavar="N", help="At most so many neighbours.", min=0)] = 128,
    repeats: Annotated[int | None, typer.Option(metavar="N", help="How often the same is asked.", min=0)] = None,
    new_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of an answer.", min=0)] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every count here.")] = None,
) -> None:
    """Proves that one prompt has one answer, to the bit of every logit, whatever shares the batch."""
    writable(json_file)
    if contract not in NAMES:
        raise typer.BadParameter(f"--contract: expected one of {', '.join(NAMES)}, got {contract!r}")
    if not model and not server:
        raise typer.BadParameter("give --model, or --server")
    from repkernels.verify.llm import checks
    from repkernels.verify.llm import server as servers

    known = servers.CHECKS if server else checks.CHECKS
    names = only or list(known)
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"--check: expected some of {', '.join(known)}, got {unknown[0]!r}")
    sizes = checks.QUICK if quick else checks.Sizes()
    sizes = replace(
        sizes,
        neighbours=tuple(n for n in sizes.neighbours if n <= neighbours),
        repeats=sizes.repeats if repeats is None else repeats,
        new_tokens=new_tokens or sizes.new_tokens,
    )
    console = Console()
    groups: dict[str, list[Any]] = {}
    if server:
        about: dict[str, Any] = {"server": server}
        asked = _reached(servers.Server(server, sizes, model))
        about["model"] = asked.model
        groups[f"{asked.model} at {server}"] = _collected(servers.run(asked, names), console)
    else:
        where = named_device(device)
        kind = dtype or ("float32" if where.type == "cpu" else "bfloat16")
        if kind not in DTYPES:
            raise typer.BadParameter(f"--dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        about = {"model": model, "dtype": kind, **_described(where)}
        if where.type == "cpu" and not only:
            names.remove("cuda-graphs")
        for title, tallies in _in_process(model, DTYPES[kind], where, contract, stock, sizes, names):
            groups[title] = _collected(tallies, console)
    _finish(groups, about, console, json_file)


def _reached(server: Any) -> Any:
    try:
        return server.named()
    except Exception as error:  # the client's own errors have no base outside of its package
        raise typer.BadParameter(f"--server: {server.url}: {type(error).__name__}: {error}") from None


def _described(where: torch.device) -> dict[str, Any]:
    from transformers import __version__

    from repkernels.verify.report import describe

    return {**describe(where), "transformers": __version__}


def _in_process(
    name: str, dtype: torch.dtype, where: torch.device, contract: str, stock: bool, sizes: Any, names: Sequence[str]
) -> Iterator[tuple[str, Iterator[Any]]]:
    from repkernels.llm.models import load
    from repkernels.verify.llm import checks
    from repkernels.verify.llm.prompts import prompts

    # It warns of what a test of batches does on purpose.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    try:
        model, tokenizer = load(name, dtype, where)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--model: {error}") from None
    prompt = prompts(tokenizer, model.config.get_text_config().vocab_size)
    # transformers collects garbage after every session: what there is already need not be looked at again.
    gc.collect()
    gc.freeze()
    try:
        if stock:
            yield "stock transformers", checks.run(checks.Subject(model, prompt, sizes), names)
        enable = import_module("repkernels.integrations.transformers").enable
        yield contract, checks.run(checks.Subject(enable(model, contract=contract), prompt, sizes), names)
    finally:
        gc.unfreeze()


def _collected(tallies: Iterator[Any], console: Console) -> list[Any]:
    found = []
    with console.status("") as status:
        for tally in tallies:
            found.append(tally)
            status.update(f"{tally.check}: {'holds' if tally.passed else 'differs'}")
    return found


def _finish(groups: dict[str, list[Any]], about: dict[str, Any], console: Console, json_file: Path | None) -> None:
    subject = ", ".join(str(about[key]) for key in ("model", "dtype", "name") if key in about)
    for title, tallies in groups.items():
        console.print(_table(f"{title}: {subject}", tallies))
    console.print(
        "answers, distinct: different sequences of tokens and of logits; differ: logits with other bits than those "
        "of the prompt alone, by how much at most",
        style="dim",
    )
    if json_file is not None:
        results = {title: [tally.as_json() for tally in tallies] for title, tallies in groups.items()}
        json_file.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    ours = list(groups.values())[-1]
    failed = [tally for tally in ours if not tally.passed]
    for tally in failed:
        why = tally.error or f"first: {tally.first}"
        console.print(f"{tally.check}: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} of {len(ours)} checks failed", style="bold red")
        raise typer.Exit(1)
    console.print(f"All {len(ours)} checks hold: {sum(t.runs for t in ours)} requests, one answer", style="bold green")


def _table(title: str, tallies: list[Any]) -> Table:
    table = Table(title=title)
    table.add_column("check", no_wrap=True)
    for heading in ("asked", "answers", "distinct", "differ", "of", "at most", "seconds"):
        table.add_column(heading, justify="right")
    for tally in tallies:
        counts = (tally.runs, tally.answers, tally.logits, tally.differing, tally.compared)
        style = None if tally.passed else "red"
        table.add_row(tally.check, *map(str, counts), f"{tally.largest:.2g}", f"{tally.seconds:.1f}", style=style)
    return table
