"""`repkernels bench perplexity`: what each contract costs a language model in quality, beside plain torch."""

import copy
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from repkernels.devices import named_device, writable

from . import machine

# Beside torch in both formats. Contracts that a format does not have are left out.
WAYS = {
    "float32": ("ordered", "fixed16", "fixed24", "fixed32"),
    "bfloat16": ("native", "ordered", "fixed8", "fixed16", "fixed24"),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Quality(NamedTuple):
    """Of one way to compute: perplexity, and beside the base the mean KL divergence and how often the likeliest token
    is the same."""

    perplexity: float
    kl: float
    same: float
    seconds: float


@app.command()
def perplexity_command(
    model: Annotated[str, typer.Option(help="smollm2, random:tiny, a directory or name that transformers loads.")],
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    file: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="Python's documentation if left out.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Of a window.")] = 1024,
    windows: Annotated[int, typer.Option(min=1, help="Of text.")] = 16,
    ways: Annotated[list[str] | None, typer.Option("--way", help="Only these, such as 'bfloat16 fixed16'.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="In a checkout: bench/results/perplexity-DEVICE.json.")
    ] = None,
) -> None:
    """Perplexity of a model on a text under each contract beside torch in fp32 and bf16, and how far their predictions
    are from torch's in fp32. Exit code 1 if something was not measured."""
    writable(json_file)
    where = named_device(device)
    everything = [f"{dtype} {name}" for dtype, names in WAYS.items() for name in ("torch", *names)]
    if unknown := [way for way in ways or () if way not in everything]:
        raise typer.BadParameter(f"--way: expected some of {', '.join(everything)}, got {unknown[0]!r}")
    about = machine.describe(where)
    results = Path(__file__).parent / "results"
    if json_file is None and results.is_dir() and not model.startswith("random:"):
        json_file = results / f"perplexity-{machine.slug(about['device'])}.json"
    base, ids = _loaded(model, where, file, tokens, windows)
    record: dict[str, Any] = {
        "benchmark": "perplexity", **about, "model": model, "text": str(file or "pydoc"), "tokens": tokens,
        "windows": len(ids), "rows": [],
    }  # fmt: skip
    console = Console()
    wanted = [_logits(base, row) for row in ids]
    failed = False
    for way in ways or everything:
        dtype, name = way.split()
        row: dict[str, Any] = {"dtype": dtype, "way": name}
        try:
            row |= measured(base, ids, wanted, dtype, name)._asdict()
        except Exception as error:
            row["error"], failed = f"{type(error).__name__}: {error}".split("\n")[0], True
        record["rows"].append(row)
        console.print(_line(row), highlight=False, markup=False, style="red" if "error" in row else None)
        if json_file is not None:
            json_file.write_text(json.dumps(record, indent=1) + "\n")
    console.print(_table(record))
    if json_file is not None:
        console.print(f"Recorded in {json_file}", highlight=False)
    if failed:
        raise typer.Exit(1)


def _loaded(name: str, where: torch.device, file: Path | None, tokens: int, windows: int) -> tuple[Any, list[Tensor]]:
    """The model in fp32, and windows of the text's token ids."""
    from repkernels.llm.models import load
    from repkernels.verify.llm.prompts import text

    try:
        base, tokenizer = load(name, torch.float32, where)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--model: {error}") from None
    passage = text() if file is None else file.read_text(errors="replace")
    # A token has four letters or so.
    ids = tokenizer(passage[: 16 * tokens * windows], add_special_tokens=False)["input_ids"]
    found = [torch.tensor(ids[i : i + tokens], device=where) for i in range(0, len(ids) - tokens + 1, tokens)]
    if not found:
        raise typer.BadParameter(f"--text: {len(ids)} tokens are less than a window of {tokens}")
    return base, found[:windows]


def measured(base: Any, ids: Sequence[Tensor], wanted: Sequence[Tensor], dtype: str, name: str) -> Quality:
    """The quality of `base`, an fp32 model, in `dtype` under contract `name`; "torch" is plain torch.

    wanted: the base's logits for each of `ids`.
    """
    from repkernels.integrations.transformers import enable

    model = copy.deepcopy(base).to(getattr(torch, dtype))
    if name != "torch":
        enable(model, contract=name)
    start, loss, kl, same, count = time.perf_counter(), 0.0, 0.0, 0, 0
    for row, logits in zip(ids, wanted, strict=True):
        found, target = (torch.log_softmax(x.double(), -1) for x in (_logits(model, row), logits))
        loss -= float(found[:-1].gather(1, row[1:, None]).sum())
        kl += float((target.exp() * (target - found)).sum())
        same += int((found.argmax(1) == target.argmax(1)).sum())
        count += len(row)
    seconds = time.perf_counter() - start
    return Quality(math.exp(loss / (count - len(ids))), kl / count, same / count, round(seconds, 2))


@torch.inference_mode()
def _logits(model: Any, ids: Tensor) -> Tensor:
    """The logits after each token, in the model's format."""
    logits: Tensor = model(ids[None], use_cache=False).logits[0]
    return logits


def _line(row: dict[str, Any]) -> str:
    what = row.get("error") or f"{row['perplexity']:.5f}, KL {row['kl']:.2g}, {row['seconds']} s"
    return f"{row['dtype']} {row['way']}: {what}"


def _table(record: dict[str, Any]) -> Table:
    torch_of = {row["dtype"]: row.get("perplexity") for row in record["rows"] if row["way"] == "torch"}
    table = Table(title=f"{record['model']}, {record['windows']} x {record['tokens']} tokens, {record['device']}")
    for heading in ("format", "way", "perplexity", "to torch", "KL to fp32", "same likeliest"):
        table.add_column(heading, justify="left" if heading in ("format", "way") else "right", no_wrap=True)
    for row in record["rows"]:
        if "error" in row:
            continue
        beside = torch_of.get(row["dtype"])
        share = f"{row['perplexity'] / beside - 1:+.3%}" if beside else "-"
        table.add_row(
            row["dtype"], row["way"], f"{row['perplexity']:.4f}", share, f"{row['kl']:.2e}", f"{row['same']:.2%}"
        )
    return table
