"""The examples: one digest for every way to make a run, at tiny sizes; and runs that stop and resume."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples import digits_cnn, digits_mlp, gpt, resnet
from examples.data import cifar10, synthetic
from examples.training import Options, trained

pytest.importorskip("sklearn")

MLP = digits_mlp.MLPOptions(steps=4, batch=8, device="cpu")
CNN = digits_cnn.CNNOptions(steps=4, batch=4, device="cpu")
RESNET = resnet.ResNetOptions(steps=2, batch=2, device="cpu", width=4, size=16)
GPT = gpt.GPTOptions(steps=3, batch=4, device="cpu", layers=2, heads=2, width=16, context=12)
EXAMPLES = {"mlp": (digits_mlp, MLP), "cnn": (digits_cnn, CNN), "resnet": (resnet, RESNET), "gpt": (gpt, GPT)}

_first: dict[Options, dict[str, Any]] = {}


def run(name: str, **changes: Any) -> dict[str, Any]:
    """Digests and losses of an example with these options changed."""
    module, options = EXAMPLES[name]
    found = trained(module.training(replace(options, **changes)))
    del found["seconds"]
    return found


def first(name: str, **changes: Any) -> dict[str, Any]:
    """As `run`, once for all tests."""
    key = replace(EXAMPLES[name][1], **changes)
    if key not in _first:
        _first[key] = run(name, **changes)
    return _first[key]


@pytest.mark.parametrize("name", EXAMPLES)
def test_converted_and_reproducible_runs_have_the_same_bits(name: str) -> None:
    assert run(name, way="reproducible") == first(name)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_two_runs_have_the_same_bits_whatever_else_draws(name: str) -> None:
    torch.manual_seed(1)
    expected = first(name)
    torch.manual_seed(2)
    assert run(name) == expected
    assert run(name, seed=1)["digests"] != expected["digests"]


def test_threads_change_nothing() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(run("cnn"))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == first("cnn")


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    assert run("cnn", workers=workers) == first("cnn")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cnn", {"amp": "fp16", "workers": 1}),
        ("cnn", {"way": "reproducible", "accumulate": 2}),
        ("gpt", {"amp": "bf16", "recompute": True}),
    ],
)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    whole = first(name, **changes)
    changes["checkpoint"] = tmp_path / "state.pt"
    stopped = run(name, stop_after=2, **changes)
    assert stopped["step"] == 2
    assert stopped["digests"]["trained"] != whole["digests"]["trained"]
    assert run(name, resume=True, **changes) == whole


def test_a_run_resumes_where_a_new_epoch_begins(tmp_path: Path) -> None:
    """1437 images: a batch of 700 ends an epoch after each second step."""
    changes = {"batch": 700, "steps": 3}
    whole = run("mlp", **changes)
    run("mlp", stop_after=2, checkpoint=tmp_path / "state.pt", **changes)
    assert run("mlp", resume=True, checkpoint=tmp_path / "state.pt", **changes) == whole


def test_recomputed_activations_have_the_same_bits() -> None:
    assert run("gpt", recompute=True)["digests"] == first("gpt")["digests"]


@pytest.mark.parametrize(("name", "amp"), [("gpt", "bf16"), ("cnn", "fp16")])
def test_mixed_precision_is_the_same_both_ways(name: str, amp: str) -> None:
    found = first(name, amp=amp)
    assert run(name, amp=amp, way="reproducible") == found
    assert found["digests"]["trained"] != first(name)["digests"]["trained"]


def test_samples_are_drawn_by_seed_epoch_and_index() -> None:
    samples, _ = synthetic(16, 8, 10)
    image = samples[3][0]
    assert torch.equal(samples[3][0], image)
    drawn = []
    for epoch in range(8):
        samples.epoch = epoch
        drawn.append(samples[3][0])
    assert torch.equal(drawn[0], image)
    assert sum(not torch.equal(x, image) for x in drawn) >= 4


def test_a_local_copy_of_cifar10_is_read(tmp_path: Path) -> None:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        part = {b"data": np.full((2, 3072), 10 * i, np.uint8), b"labels": [i, i + 1]}
        (tmp_path / name).write_bytes(pickle.dumps(part))
    train, test = cifar10(tmp_path)
    assert (len(train), len(test)) == (10, 2)
    image, label = test[1]
    assert label == 6
    assert torch.equal(image, torch.full((3, 32, 32), (50 - 128) / 64))


@pytest.mark.parametrize(
    ("named", "bad"),
    [
        ("way", {"way": "torch"}),
        ("amp", {"amp": "fp8"}),
        ("accumulate", {"batch": 9, "accumulate": 2}),
        ("checkpoint", {"resume": True}),
        ("batch", {"batch": 2000}),
    ],
)
def test_bad_options_are_refused(named: str, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}: "):
        run("mlp", **bad)


def test_a_command_line_writes_what_it_saw(tmp_path: Path) -> None:
    import json

    from typer.testing import CliRunner

    from examples.command import command

    app = command(digits_mlp.MLPOptions, digits_mlp.training, "About.")
    file = tmp_path / "run.json"
    options = ["--steps", "4", "--batch", "8", "--device", "cpu"]
    done = CliRunner().invoke(app, [*options, "--json", str(file)])
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    assert record["digests"] == first("mlp")["digests"]
    assert record["options"]["batch"] == 8
    assert CliRunner().invoke(app, ["--amp", "fp8"]).exit_code == 2
