"""`repkernels bench randomness`: how much of training's randomness is left when the seed is fixed."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from repkernels.devices import named_device, writable

from . import machine
from .network_steps import DETERMINISTIC, TORCH, pair
from .networks.resnet import DEPTHS
from .randomness import OURS, Run, Setting, data, runs, share, summary

FIXED, SEEDS = "one seed", "other seeds"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def randomness_command(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    count: Annotated[int, typer.Option("--runs", min=2, help="Runs of each way.")] = 10,
    epochs: Annotated[int, typer.Option(min=1)] = 4,
    depth: Annotated[int, typer.Option(help=f"Of the ResNet: {', '.join(map(str, DEPTHS))}.")] = 18,
    width: Annotated[int, typer.Option(min=1, help="Channels of its first stage.")] = 16,
    size: Annotated[int, typer.Option(min=8, help="Pixels of a digit's side.")] = 32,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    lr: Annotated[float, typer.Option(min=0)] = 0.1,
    folder: Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="CIFAR-10's Python version.")] = None,
    contract: Annotated[str, typer.Option(help="Of this library's runs; the defaults if left out.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="2 runs of one epoch of a few small images.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="In a checkout: bench/results/randomness-DEVICE.json.")
    ] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Beside the JSON.")] = None,
) -> None:
    """Trains one ResNet on images many times with one seed, then with other seeds: torch as it is (cuDNN's benchmark
    mode, TF32 off), torch deterministic, and this library.

    Exit code 1 if this library's runs with one seed are not one model.
    """
    writable(json_file)
    where = named_device(device)
    if depth not in DEPTHS:
        raise typer.BadParameter(f"--depth: expected one of {', '.join(map(str, DEPTHS))}, got {depth}")
    try:
        if contract:
            pair(contract)
        setting = Setting(depth, width, size, batch, epochs, lr, str(folder or ""), contract, 0)
        if quick:
            count, setting = 2, setting._replace(width=4, size=8, epochs=1, images=2 * batch)
        labels = data(setting)[1].labels
    except (ValueError, ModuleNotFoundError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from None
    about = machine.describe(where)
    if json_file is None and not quick:
        results = Path(__file__).parent / "results"
        json_file = results / f"randomness-{machine.slug(about['device'])}.json" if results.is_dir() else None
    console = Console()
    if not console.is_terminal:
        console.width = 120
    record: dict[str, Any] = {"benchmark": "randomness", **about, "setting": setting._asdict(), "ways": []}
    for way in (TORCH, DETERMINISTIC, OURS):
        for kind in (FIXED, SEEDS):
            found = _isolated(way, [0] * count if kind == FIXED else list(range(1, count + 1)), setting, where)
            record["ways"].append({"way": way, "seeds": kind, **summary(found, labels), "each": _each(found, labels)})
            console.print(_line(record["ways"][-1]), highlight=False, soft_wrap=True)
            if json_file is not None:
                json_file.write_text(json.dumps(record, indent=1) + "\n")
    record["share"] = {
        way: share(*(next(w for w in record["ways"] if (w["way"], w["seeds"]) == (way, k)) for k in (FIXED, SEEDS)))
        for way in (TORCH, DETERMINISTIC, OURS)
    }
    console.print(_table(record))
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n")
        console.print(f"Recorded in {json_file}", highlight=False)
        plot_file = plot_file or json_file.with_suffix(".png")
    if plot_file is not None:
        plot(plot_file, record, console)
    ours = next(w for w in record["ways"] if (w["way"], w["seeds"]) == (OURS, FIXED))
    if ours["digests"] != 1:
        raise typer.Exit(1)


def _isolated(way: str, seeds: list[int], setting: Setting, device: torch.device) -> list[Run]:
    """The runs; on a GPU from a process of their own, since torch's settings last as long as a process."""
    if device.type == "cpu":
        before = torch.are_deterministic_algorithms_enabled()
        try:
            return runs(way, seeds, setting, device)
        finally:
            torch.use_deterministic_algorithms(before)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([f"{__package__}.randomness"])
    with ProcessPoolExecutor(1, mp_context=server) as executor:
        return executor.submit(runs, way, seeds, setting, device).result()


def _each(found: list[Run], labels: Any) -> list[dict[str, Any]]:
    return [
        {
            "seed": run.seed,
            "accuracy": float((run.predictions == labels).mean()),
            "loss": run.loss,
            "digest": run.digest,
            "seconds": round(run.seconds, 2),
        }
        for run in found
    ]


def _line(way: dict[str, Any]) -> str:
    return (
        f"{way['way']:19} {way['seeds']:11} {way['runs']} runs, {way['digests']} different models, "
        f"accuracy {way['accuracy']:.2%}, {way['seconds']:.1f} s a run"
    )


def _table(record: dict[str, Any]) -> Table:
    table = Table(title=f"{record['device']}, torch {record['torch']}", title_justify="left")
    for heading in ("way", "seeds", "models", "accuracy", "its deviation", "loss's", "churn", "L2 of unit weights"):
        table.add_column(heading, justify="left" if heading in ("way", "seeds") else "right")
    for way in record["ways"]:
        table.add_row(
            way["way"],
            way["seeds"],
            f"{way['digests']}",
            f"{way['accuracy']:.2%}",
            f"{way['accuracy_deviation']:.3%}",
            f"{way['loss_deviation']:.3g}",
            f"{way['churn']:.3%}",
            f"{way['distance_of_unit_vectors']:.3g}",
            end_section=way["seeds"] == SEEDS,
        )
    for way, parts in record["share"].items():
        cells = ["-" if parts[name] is None else f"{parts[name]:.0%}" for name in parts if name != "class_deviation"]
        table.add_row(way, "one / other", "", "", *cells)
    return table


def plot(path: Path, record: dict[str, Any], console: Console) -> None:
    """Accuracy and loss of every run; churn, distance, deviations by class, with one seed beside other seeds."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        console.print("No plot: it needs matplotlib (pip install 'repkernels[bench]')")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ways = record["ways"]
    names = [f"{w['way']}\n{w['seeds']}" for w in ways]
    ticks = [name.replace(" ", "\n") for name in names]
    colors = ["tab:orange" if w["seeds"] == FIXED else "tab:blue" for w in ways]
    figure, axes = pyplot.subplots(2, 3, figsize=(17, 9))
    for axis, name in zip(axes[0], ("accuracy", "loss"), strict=False):
        for i, way in enumerate(ways):
            axis.plot([i] * way["runs"], [run[name] for run in way["each"]], "o", color=colors[i], alpha=0.5)
        axis.set_title(f"test {name} of each run")
    bars = {
        axes[0, 2]: ("churn", "predictions that differ between two runs"),
        axes[1, 0]: ("distance_of_unit_vectors", "L2 distance of two runs' weights, scaled to length 1"),
        axes[1, 1]: ("digests", "different models"),
    }
    for axis, (name, title) in bars.items():
        axis.bar(range(len(ways)), [way[name] for way in ways], color=colors)
        axis.set_title(title)
    for axis in (*axes[0], axes[1, 0], axes[1, 1]):
        axis.set_xticks(range(len(ways)), ticks, fontsize=7)
    for i, way in enumerate(ways):
        classes = way["class_deviation"]
        places = [c + (i + 0.5) / len(ways) * 0.8 - 0.4 for c in range(len(classes))]
        axes[1, 2].bar(places, classes, width=0.8 / len(ways), label=names[i].replace("\n", ", "))
    axes[1, 2].set_title("deviation of a class's accuracy")
    axes[1, 2].set_xlabel("class")
    axes[1, 2].legend(fontsize=7)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.suptitle(f"{record['device']}, torch {record['torch']}, commit {record['commit']}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
