"""The demo: the recorded bits, an honest exit code, and what it says of batches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from repkernels import demo, random
from repkernels.cli import app
from repkernels.llm import chat_demo, smollm2
from repkernels.verify.catalogue import demo as recorded

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "accuracy"), [("mlp", 0.96), ("cnn", 0.9)])
def test_digests_are_those_of_the_reference(name: str, accuracy: float) -> None:
    trained = demo.train(CPU, demo.NETWORKS[name])
    assert trained.digests == recorded(name)
    assert trained.accuracy > accuracy


def test_rows_do_not_depend_on_their_batch() -> None:
    random.manual_seed(0)
    found = [c for c in demo.compare_batches(CPU) if c.library == "repkernels"]
    assert found
    assert all(c.differing == 0 and c.largest == 0 for c in found)


def test_every_comparison_is_made_for_both_libraries() -> None:
    found = demo.compare_batches(CPU)
    assert {c.library for c in found} == {"torch", "repkernels"}
    assert all(0 <= c.differing <= c.rows == 256 for c in found)


Digests = dict[str, dict[str, str]]


def record(**changes: str) -> dict[str, Any]:
    """The record of a chat, with the digests that were recorded or others."""
    of = chat_demo.recorded() | changes
    digests = {"tokens": of["tokens"], "logits": of["logits"]}
    return {"fingerprint": {"weights": of["weights"]}, "answers": [{"digests": digests}]}


def run(
    monkeypatch: pytest.MonkeyPatch, digests: Digests, *arguments: str, chatted: chat_demo.Chatted | None = None
) -> tuple[int, str]:
    """The command with training and the chat replaced by their results."""
    chatted = chatted or chat_demo.Chatted("4", record(), record(), 1.0)
    trained = {demo.NETWORKS[name]: demo.Trained(found, 0.97) for name, found in digests.items()}
    monkeypatch.setattr(demo, "train", lambda device, network, step: trained[network])
    monkeypatch.setattr(demo, "chat", lambda device, contract: chatted)
    done = CliRunner().invoke(app, ["demo", "--device", "cpu", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def digests() -> Digests:
    return {name: recorded(name) for name in demo.NETWORKS}


def test_equal_digests_succeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, digests: Digests) -> None:
    code, output = run(monkeypatch, digests, "--json", str(tmp_path / "demo.json"))
    assert code == 0
    assert "Every bit is the reference's" in output
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["equal"] is True
    assert {name: found["digests"] for name, found in record["networks"].items()} == digests


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_another_digest_fails_and_shows_both(monkeypatch: pytest.MonkeyPatch, name: str, digests: Digests) -> None:
    code, output = run(monkeypatch, digests | {name: digests[name] | {"trained": "0" * 64}})
    assert code == 1
    assert "0" * 64 in output
    assert digests[name]["trained"] in output


@pytest.mark.parametrize(
    ("alone", "beside", "words"),
    [({"logits": "0" * 64}, {"logits": "0" * 64}, "another answer than the reference"), ({}, {"tokens": ""}, "beside")],
)
def test_another_answer_fails(
    monkeypatch: pytest.MonkeyPatch, digests: Digests, alone: dict[str, str], beside: dict[str, str], words: str
) -> None:
    found = chat_demo.Chatted("5", record(**alone), record(**beside), 1.0)
    code, output = run(monkeypatch, digests, chatted=found)
    assert code == 1 and words in output


@pytest.mark.slow
def test_the_chat_is_the_references() -> None:
    pytest.importorskip("transformers")
    try:
        smollm2.path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = chat_demo.chat(CPU)
    assert found.same and found.digests == chat_demo.recorded()
    assert found.text == "The answer to this classic math problem is 4."


def test_another_contract_has_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch, digests: Digests) -> None:
    unknown = {name: dict.fromkeys(found, "0" * 64) for name, found in digests.items()}
    code, output = run(monkeypatch, unknown, "--contract", "ordered")
    assert code == 0
    assert "No digests are recorded" in output
