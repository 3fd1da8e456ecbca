"""The demo: the recorded bits, an honest exit code, and what it says of batches."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from repkernels import demo, random
from repkernels.cli import app
from repkernels.verify.catalogue import demo as recorded

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained() -> demo.Trained:
    return demo.train(CPU)


def test_digests_are_those_of_the_reference(trained: demo.Trained) -> None:
    assert trained.digests == recorded()


def test_accuracy(trained: demo.Trained) -> None:
    assert trained.accuracy > 0.96


def test_rows_do_not_depend_on_their_batch() -> None:
    random.manual_seed(0)
    found = [c for c in demo.compare_batches(CPU) if c.library == "repkernels"]
    assert found
    assert all(c.differing == 0 and c.largest == 0 for c in found)


def test_every_comparison_is_made_for_both_libraries() -> None:
    found = demo.compare_batches(CPU)
    assert {c.library for c in found} == {"torch", "repkernels"}
    assert all(0 <= c.differing <= c.rows == 256 for c in found)


def run(monkeypatch: pytest.MonkeyPatch, trained: demo.Trained, *arguments: str) -> tuple[int, str]:
    """The command with training replaced by its result."""
    monkeypatch.setattr(demo, "train", lambda device, step: trained)
    done = CliRunner().invoke(app, ["demo", "--device", "cpu", *arguments])
    return done.exit_code, done.output


def test_equal_digests_succeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, output = run(monkeypatch, demo.Trained(recorded(), 0.97), "--json", str(tmp_path / "demo.json"))
    assert code == 0
    assert "Every bit is the reference's" in output
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["equal"] is True
    assert record["digests"] == recorded()


def test_another_digest_fails_and_shows_both(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, demo.Trained(recorded() | {"trained": "0" * 64}, 0.97))
    assert code == 1
    assert "0" * 64 in output
    assert recorded()["trained"] in output


def test_another_contract_has_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, demo.Trained(dict.fromkeys(recorded(), "0" * 64), 0.97), "--contract", "ordered")
    assert code == 0
    assert "No digests are recorded" in output
