"""Records of answers made again: by an engine in process, and what a record that differs is told apart by."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("transformers")

from repkernels.cli import app
from repkernels.llm import models, replay
from repkernels.llm.endpoints import Chat
from repkernels.llm.engine import Batching, Engine
from repkernels.llm.record import differences

pytestmark = pytest.mark.slow

BATCHING = Batching(num_blocks=32, block_size=16, max_batch_tokens=64)


def engine() -> Engine:
    return Engine(*models.load("random:tiny"), "random:tiny", "fixed16", BATCHING)


@pytest.fixture(scope="module")
def response() -> Any:
    import asyncio

    made = engine()
    made.start()
    try:
        chat = Chat(made)
        body = {
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.9, "n": 2, "logprobs": True, "max_completion_tokens": 5, "repkernels": {"digest": True},
        }  # fmt: skip
        return asyncio.run(chat.respond(chat.read(body)))
    finally:
        made.stop()


def test_a_record_says_all_that_the_request_leaves_open(response: Any) -> None:
    recorded = response["repkernels"]
    assert recorded["request"].items() >= {"temperature": 0.9, "top_p": 1.0, "max_completion_tokens": 5}.items()
    assert isinstance(recorded["request"]["seed"], int)
    assert differences(replay.made(recorded, engine()), recorded) == []


def test_command(response: Any, tmp_path: Path) -> None:
    file = tmp_path / "response.json"
    file.write_text(json.dumps(response))
    done = CliRunner().invoke(app, ["replay", str(file), "--device", "cpu", "--json", str(tmp_path / "again.json")])
    assert done.exit_code == 0 and "The same 10 tokens" in done.output, done.output
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["answers"] == response["repkernels"]["answers"]


def change(response: Any, *path: Any, to: Any) -> Any:
    changed = copy.deepcopy(response)
    place = changed["repkernels"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return changed


@pytest.mark.parametrize(
    ("path", "to", "code", "words"),
    [
        (("fingerprint", "weights"), "0" * 64, 2, "weights: "),
        (("fingerprint", "numerics"), 1, 2, "numerics: "),
        (("answers", 1, "digests", "rows", 2), "0" * 64, 1, "answer 1: the logits of token 2 differ"),
        (("answers", 0, "tokens", 3), 1, 1, "answer 0: token 3 is"),
    ],
)
def test_what_differs_is_named(
    response: Any, path: Any, to: Any, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "response.json"
    file.write_text(json.dumps(change(response, *path, to=to)))
    recorded = response["repkernels"]

    def made(other: Any, mine: Engine) -> Any:
        replay._check(mine.fingerprint, other)
        return recorded

    monkeypatch.setattr(replay, "made", made)
    done = CliRunner().invoke(app, ["replay", str(file), "--device", "cpu"])
    assert done.exit_code == code and words in done.output.replace("\n", ""), done.output


def test_what_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "response.json"
    for text in ("{", "{}", "[]", '{"repkernels": {"answers": [], "format": 99}}'):
        file.write_text(text)
        assert CliRunner().invoke(app, ["replay", str(file)]).exit_code == 2
