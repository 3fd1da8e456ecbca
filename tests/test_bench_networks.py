"""`repkernels bench networks` and `bench randomness`: what they list, how rows and summaries are made, what is kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import repkernels
from bench import network_cli, network_steps, randomness_cli
from bench.networks import IN_MODE, NETWORKS, mobilenet, vit
from bench.randomness import OURS, Run, share, summary

PARAMETERS = {
    "vgg19": 143667240, "resnet18": 11689512, "resnet50": 25557032, "resnet152": 60192808, "densenet121": 7978856,
    "mobilenet_v2": 3504872, "efficientnet_b0": 5288548, "vit_b_16": 86567656,
}  # fmt: skip

# Of the blocks that another one has.
ALIKE = ("resnet152",)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_the_one_of_its_paper_and_can_be_converted(name: str) -> None:
    with torch.device("meta"):
        model = NETWORKS[name](1000, 224)
        if name not in ALIKE:
            assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
            repkernels.convert(model)
    if name in PARAMETERS:
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


def test_gates_alone_need_the_mode() -> None:
    """Outside of it the product's gradient is a sum of torch's."""
    torch.manual_seed(0)
    block = mobilenet.Block(4, 4, 2, 1, 3, nn.ReLU6, False)
    gated = mobilenet.Block(4, 4, 2, 1, 3, nn.SiLU, True)
    x = torch.randn(2, 4, 4, 4, requires_grad=True)
    assert repkernels.audit(repkernels.convert(block), x).reproducible
    repkernels.convert(gated)
    assert [row.operation for row in repkernels.audit(gated, x).refused] == ["aten::sum.dim_IntList"]
    with repkernels.reproducible():
        assert repkernels.audit(gated, x).reproducible
    assert IN_MODE == ("efficientnet_b0",)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(classes: int, side: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
        )

    monkeypatch.setitem(NETWORKS, "tiny", build)
    monkeypatch.setattr(network_steps, "CLASSES", 10)


def test_every_way_is_timed_and_kept(tiny: None, tmp_path: Path) -> None:
    file = tmp_path / "networks.json"
    options = ["--device", "cpu", "--networks", "tiny", "--quick", "--contracts", "fixed24,native", "--json", str(file)]
    done = CliRunner().invoke(network_cli.app, options)
    assert done.exit_code == 1, done.output  # native is not for fp32
    rows = json.loads(file.read_text())["rows"]
    ways = ("torch", "torch deterministic", "fixed24", "native")
    assert [(row["way"], row["layout"]) for row in rows] == [(w, l) for w in ways for l in ("nchw", "channels_last")]
    for row in rows:
        assert row["mode"] == "eager"
        assert ("native" in row["error"]) if row["way"] == "native" else row["ratio"] > 0
    assert min(row["ratio"] for row in rows if row["way"] == "torch") == 1.0
    assert not torch.are_deterministic_algorithms_enabled()


def test_one_step_fills_caches_and_is_not_timed(tiny: None) -> None:
    done = CliRunner().invoke(
        network_cli.app,
        ["--device", "cpu", "--networks", "tiny", "--quick", "--contracts", "fixed24", "--ours-only", "--warm-only"],
    )
    assert done.exit_code == 0, done.output
    assert "ms" not in done.output


@pytest.mark.parametrize(
    "arguments",
    [["--networks", "alexnet"], ["--contracts", "fixed12"], ["--layouts", "nwhc"], ["--jobs", "2"], ["--no-eager"]],
)
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(network_cli.app, ["--device", "cpu", *arguments])
    assert done.exit_code == 2
    assert arguments[0] in done.output


def runs(*predictions: list[int], seed: int = 0) -> list[Run]:
    weights = [np.array([1.0, float(i)], np.float32) for i in range(len(predictions))]
    return [
        Run(seed, np.array(p), float(i), w, str(w), 1.0)
        for i, (p, w) in enumerate(zip(predictions, weights, strict=True))
    ]


def test_a_summary_of_runs() -> None:
    labels = np.arange(10)
    found = summary(runs([*range(10)], [*range(9), 0]), labels)
    assert (found["runs"], found["digests"]) == (2, 2)
    assert found["accuracy"] == pytest.approx(0.95)
    assert found["accuracy_deviation"] == pytest.approx(0.1 / 2**0.5)
    assert found["loss_deviation"] == pytest.approx(0.5**0.5)
    assert found["churn"] == pytest.approx(0.1)
    assert found["distance"] == pytest.approx(1)
    assert found["class_deviation"][:9] == [0] * 9 and found["class_deviation"][9] == pytest.approx(0.5**0.5)
    same = summary(runs([*range(10)]) * 3, labels)
    assert same["digests"] == 1
    assert set(share(same, found).values()) == {0.0}
    assert set(share(found, same).values()) == {None}


def test_runs_with_one_seed_are_one_model_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "randomness.json"
    options = ["--device", "cpu", "--quick", "--batch", "16", "--json", str(file)]
    pytest.importorskip("sklearn")
    done = CliRunner().invoke(randomness_cli.app, options)
    assert done.exit_code == 0, done.output
    record: dict[str, Any] = json.loads(file.read_text())
    ours = {way["seeds"]: way for way in record["ways"] if way["way"] == OURS}
    assert ours["one seed"]["digests"] == 1
    assert ours["one seed"]["accuracy_deviation"] == ours["one seed"]["distance"] == ours["one seed"]["churn"] == 0
    assert ours["other seeds"]["digests"] == 2
    assert record["share"][OURS]["distance_of_unit_vectors"] == 0
    assert file.with_suffix(".png").stat().st_size > 10_000


def test_a_way_that_differs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(randomness_cli, "_isolated", lambda way, seeds, *_: runs([1] * 128, [2] * 128))
    assert CliRunner().invoke(randomness_cli.app, ["--device", "cpu", "--quick"]).exit_code == 1


def test_a_vision_transformer_of_one_block_is_covered_by_its_modules() -> None:
    model = repkernels.convert(vit.ViT(10, 16, depth=1))
    refused = {row.operation for row in repkernels.audit(model, torch.randn(2, 3, 16, 16)).refused}
    assert refused <= {"aten::arange"}  # of integers here
