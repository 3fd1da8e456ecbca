"""The kit for language models: what it counts, that it sees transformers differ, and that ours does not."""

import gc
import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from repkernels.cli import app

transformers = pytest.importorskip("transformers")

from bench import perplexity  # noqa: E402
from repkernels.llm.models import load  # noqa: E402
from repkernels.verify.llm import checks, command, server  # noqa: E402
from repkernels.verify.llm.batching import Answer  # noqa: E402
from repkernels.verify.llm.prompts import prompts  # noqa: E402
from repkernels.verify.llm.tally import Tally  # noqa: E402

pytestmark = pytest.mark.slow

SIZES = replace(checks.QUICK, needle=13, lengths=(9,), pages=(32,), samples=2)


@pytest.fixture(autouse=True, scope="module")
def what_is_there_is_no_garbage():
    """transformers collects garbage after every session."""
    gc.freeze()
    yield
    gc.unfreeze()


def subject(model):
    return checks.Subject(model, prompts(None, model.config.vocab_size), SIZES)


def tiny():
    return load("random:tiny", torch.float32)[0]


def answer(tokens, logits):
    return Answer(tuple(tokens), torch.tensor(logits))


def test_tally_counts_bits_as_far_as_the_tokens_before_agree():
    tally = Tally("t")
    tally.add(answer([1, 2, 3], [[0.0, 1.0], [2.0, float("nan")], [4.0, 5.0]]), "first")
    tally.add(answer([1, 2, 3], [[0.0, 1.0], [2.0, -float("nan")], [4.0, 5.0]]), "the same")
    assert tally.passed and (tally.answers, tally.logits, tally.differing) == (1, 1, 0)
    tally.add(answer([1, 9, 9], [[-0.0, 1.0], [2.5, float("nan")], [0.0, 0.0]]), "another")
    assert not tally.passed
    assert (tally.runs, tally.answers, tally.logits) == (3, 2, 2)
    assert (tally.differing, tally.compared, tally.largest, tally.first) == (2, 6 + 6 + 4, 0.5, "another")
    assert json.loads(json.dumps(tally.as_json()))["answers"] == 2


def test_tally_compares_a_servers_digests_of_rows():
    tally = Tally("t")
    for row in ("a", "b"):
        tally.add(replace(answer(["x"], [[0.5]]), rows=(row,)), row)
    assert not tally.passed and (tally.answers, tally.logits, tally.differing, tally.first) == (1, 2, 0, "b")


def test_transformers_alone_is_seen_to_differ():
    (tally,) = checks.run(subject(tiny()), ["neighbours"])
    assert not tally.error and not tally.passed
    assert tally.runs == 4 and 0 < tally.differing < tally.compared and tally.logits > 1


@pytest.mark.parametrize("contract", ["fixed16"])
def test_ours_holds(contract):
    from repkernels.integrations.transformers import enable

    names = [name for name in checks.CHECKS if name not in ("cuda-graphs", "pages", "repeats", "lengths")]
    found = list(checks.run(subject(enable(tiny(), contract=contract)), names))
    assert [(tally.check, tally.error, tally.first) for tally in found if not tally.passed] == []
    assert [tally.check for tally in found] == names
    assert all(tally.runs >= 3 and tally.compared > 0 for tally in found)


def test_a_check_that_raises_has_failed():
    def broken(subject):
        yield "once", answer([1], [[1.0]])
        raise RuntimeError("no more")

    (tally,) = checks.tallied(None, {"broken": broken}, (), lambda: answer([1], [[1.0]]))
    assert tally.error == "RuntimeError: no more" and not tally.passed


def test_command(tmp_path, monkeypatch):
    # Ours would take long, and is tested above: this is transformers twice, whose answers differ.
    monkeypatch.setattr(command, "import_module", lambda name: type("", (), {"enable": lambda model, contract: model}))
    file = tmp_path / "found.json"
    arguments = ["verify", "llm", "--model", "random:tiny", "--quick", "--device", "cpu", "--check", "decode-prefill"]
    done = CliRunner().invoke(app, [*arguments, "--stock", "--json", str(file), "--new-tokens", "3"])
    assert done.exit_code == 1, done.output
    found = json.loads(file.read_text())
    assert list(found["results"]) == ["stock transformers", "fixed16"]
    assert found["dtype"] == "float32" and found["transformers"] == transformers.__version__
    assert found["results"]["fixed16"][0]["differing"] > 0
    assert "1 of 1 checks failed" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model", "random:tiny", "--contract", "fixed12"],
        ["--model", "random:tiny", "--check", "everything"],
        ["--model", "random:tiny", "--dtype", "float8"],
        ["--model", "random:tiny", "--device", "nonsense"],
        ["--model", "random:huge"],
        ["--server", "http://127.0.0.1:9", "--check", "pages"],
    ],
)
def test_command_refuses(arguments):
    done = CliRunner().invoke(app, ["verify", "llm", *arguments])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output


class Pretended(server.Server):
    """A server whose answers depend on what it was asked, and, if it leaks, on how many questions it had."""

    leaks = False
    asked = 0

    def ask(self, question, new=0, **options):
        type(self).asked += 1
        n = options.get("n", 1)
        logits = torch.full((2 * n, 2), float(len(question)) + self.leaks * self.asked)
        return Answer(tuple(f"{question}{i}" for i in range(2 * n)), logits)

    def stream(self, question, stop_after=-1):
        return question


def test_checks_of_a_server():
    holding = Pretended("http://127.0.0.1", SIZES, "m")
    found = list(server.run(holding, list(server.CHECKS)))
    assert [(tally.check, tally.error, tally.first) for tally in found if not tally.passed] == []
    Pretended.leaks = True
    try:
        found = list(server.run(holding, [name for name in server.CHECKS if name != "streaming"]))
    finally:
        Pretended.leaks = False
    assert not any(tally.passed for tally in found)


def test_prompts_of_a_tokenizer_are_different_passages():
    def tokenizer(text, add_special_tokens):
        return {"input_ids": [ord(letter) for letter in text]}

    prompt = prompts(tokenizer, 128)
    assert len(prompt(50, 0)) == 50 and prompt(50, 0) != prompt(50, 1)
    assert prompt(60, 0)[:50] == prompt(50, 0)


def test_perplexity(tmp_path):
    file = tmp_path / "found.json"
    ways = ["--way", "float32 torch", "--way", "bfloat16 torch", "--way", "float32 fixed24"]
    arguments = [
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--tokens",
        "24",
        "--windows",
        "2",
        *ways,
        "--json",
        str(file),
    ]
    done = CliRunner().invoke(perplexity.app, arguments)
    assert done.exit_code == 0, done.output
    exact, half, ours = json.loads(file.read_text())["rows"]
    assert exact["kl"] == 0 and exact["same"] == 1
    assert abs(ours["perplexity"] / exact["perplexity"] - 1) < 1e-4 < abs(half["perplexity"] / exact["perplexity"] - 1)
    assert CliRunner().invoke(perplexity.app, ["--model", "random:tiny", "--way", "float8 torch"]).exit_code == 2
