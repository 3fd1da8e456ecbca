"""`repkernels serve` with OpenAI's own client: one answer to a request, whatever the server has to do beside it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repkernels.cli import app

pytestmark = pytest.mark.slow

openai = pytest.importorskip("openai")
pytest.importorskip("transformers")
pytest.importorskip("uvicorn")

MODEL = "random:tiny"
DIGEST = {"repkernels": {"digest": True}}
SAMPLED = {"temperature": 1.0, "seed": 5, "max_tokens": 6}
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    command = [sys.executable, "-m", "repkernels", "serve", MODEL, "--port", str(port)]
    sizes = ["--num-blocks", "64", "--block-size", "16", "--max-batch-tokens", "64"]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": paths}
    server = subprocess.Popen([*command, *sizes], env=environment, stderr=subprocess.PIPE)
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(server.stderr or ()), daemon=True)
    reader.start()
    try:
        for _ in range(3000):
            assert server.poll() is None, b"".join(lines).decode()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail(f"no server within five minutes: {b''.join(lines).decode()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
    reader.join(10)
    assert b"Traceback" not in b"".join(lines), b"".join(lines).decode()


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def chat(client: Any, text: str = "hello", **options: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], **{"max_tokens": 6, **options}
    )


def answers(response: Any) -> list[dict[str, Any]]:
    return response.repkernels["answers"]


def test_models_and_health(client: Any, url: str) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert json.load(urllib.request.urlopen(f"{url}/health")) == {"status": "ok"}


def test_whole_and_streamed_are_the_same(client: Any) -> None:
    options = {"logprobs": True, "top_logprobs": 3, "extra_body": DIGEST, **SAMPLED}
    whole = chat(client, **options)
    assert whole.system_fingerprint.startswith("repkernels-2-fixed16-")
    assert whole.usage.completion_tokens == 6 and whole.choices[0].finish_reason == "length"
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **options))
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
    entries = [entry for piece in pieces if piece.logprobs for entry in piece.logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    assert answers(chunks[-1]) == answers(whole)


def test_answers_of_one_seed(client: Any) -> None:
    first = chat(client, n=3, extra_body=DIGEST, **SAMPLED)
    again = chat(client, n=3, extra_body=DIGEST, **SAMPLED)
    assert answers(first) == answers(again)
    assert len({tuple(answer["tokens"]) for answer in answers(first)}) == 3
    assert answers(chat(client, extra_body=DIGEST, **SAMPLED)) == answers(first)[:1]
    assert answers(chat(client, extra_body=DIGEST, **{**SAMPLED, "seed": 6})) != answers(first)[:1]
    assert len(chat(client, n=2, **{**SAMPLED, "max_tokens": 1}).choices) == 2


def test_completions_of_text_and_ids(client: Any) -> None:
    prompts: list[Any] = ["abc", [97, 98, 99]]
    first, second = (
        client.completions.create(model=MODEL, prompt=prompt, logprobs=2, n=2, extra_body=DIGEST, **SAMPLED)
        for prompt in prompts
    )
    assert answers(first) == answers(second)
    assert [choice.text for choice in first.choices] == [choice.text for choice in second.choices]
    assert len(first.choices[0].logprobs.token_logprobs) == 6
    both = client.completions.create(model=MODEL, prompt=["x", "abc"], n=2, extra_body=DIGEST, **SAMPLED)
    assert answers(both)[2:] == answers(first)


def test_parameters_are_the_requests_own(client: Any) -> None:
    greedy = answers(chat(client, temperature=0, extra_body=DIGEST))
    for options in (
        {"temperature": 1.5, "seed": 1, "top_p": 0.7, "extra_body": {**DIGEST, "top_k": 9, "min_p": 0.01}},
        {"temperature": 0, "extra_body": {**DIGEST, "repetition_penalty": 1e6}, "frequency_penalty": 2.0},
        {"temperature": 0, "presence_penalty": 2.0, "extra_body": DIGEST},
    ):
        first = answers(chat(client, **{"max_tokens": 6, **options}))
        assert answers(chat(client, temperature=0, extra_body=DIGEST)) == greedy
        assert answers(chat(client, **{"max_tokens": 6, **options})) == first
    assert answers(chat(client, temperature=1, seed=2, extra_body={**DIGEST, "top_k": 1})) == greedy


def test_stop(client: Any) -> None:
    text = client.completions.create(model=MODEL, prompt="The", max_tokens=40, seed=3, temperature=1).choices[0].text
    stop = text[10:13]
    found = client.completions.create(
        model=MODEL, prompt="The", max_tokens=40, seed=3, temperature=1, stop=[stop, "never"]
    ).choices[0]
    assert found.text == text[: text.index(stop)] and found.finish_reason == "stop"


def test_alone_and_among_others(client: Any) -> None:
    alone = answers(chat(client, "needle", extra_body=DIGEST, **SAMPLED))
    with ThreadPoolExecutor(13) as pool:
        others = [pool.submit(chat, client, "x" * (17 * i), temperature=i % 2, max_tokens=3 + i) for i in range(12)]
        needle = pool.submit(chat, client, "needle", extra_body=DIGEST, **SAMPLED)
        for other in others:
            other.result()
    assert answers(needle.result()) == alone


def test_cancelled_requests_leave_the_others_alone(client: Any, url: str) -> None:
    alone = answers(chat(client, "needle", extra_body=DIGEST, **SAMPLED))
    for options in ({"stream": True}, {}):
        body = {"messages": [{"role": "user", "content": "long"}], "max_tokens": 900, "n": 2, **options}
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
            data = json.dumps(body).encode()
            head = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
            lines = "\r\n".join([*head, f"Content-Length: {len(data)}", "", ""])
            connection.sendall(lines.encode() + data)
            time.sleep(0.3)
    # What they would have taken is free again: this needs all of the cache.
    assert answers(chat(client, "needle", extra_body=DIGEST, **SAMPLED)) == alone
    assert chat(client, "x" * 900, max_tokens=80).usage.completion_tokens == 80


REFUSED: list[tuple[dict[str, Any], str, int]] = [
    ({"max_tokens": 5000}, "context_length_exceeded", 400),
    ({"messages": [{"role": "user", "content": "x" * 2000}]}, "context_length_exceeded", 400),
    ({"messages": []}, "messages", 400),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", 400),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", 400),
    ({"max_tokens": 0}, "max_tokens", 400),
    ({"temperature": -1}, "temperature", 400),
    ({"temperature": "hot"}, "temperature", 400),
    ({"top_p": 2}, "top_p", 400),
    ({"n": 0}, "n", 400),
    ({"seed": 1 << 70}, "seed", 400),
    ({"stop": [""]}, "stop", 400),
    ({"top_logprobs": 3}, "top_logprobs", 400),
    ({"tools": [{"type": "function"}]}, "tools", 400),
    ({"response_format": {"type": "json_object"}}, "response_format", 400),
    ({"logit_bias": {"5": 1}}, "logit_bias", 400),
    ({"frobnicate": 1}, "frobnicate", 400),
    ({"model": "another"}, "model", 404),
]


def test_replay_by_the_server(client: Any, url: str, tmp_path: Path) -> None:
    file = tmp_path / "response.json"
    file.write_text(chat(client, n=2, extra_body=DIGEST, **SAMPLED).model_dump_json())
    done = CliRunner().invoke(app, ["replay", str(file), "--server", f"{url}/v1"])
    assert done.exit_code == 0 and "The same 12 tokens" in done.output, done.output
    changed = json.loads(file.read_text())
    changed["repkernels"]["answers"][1]["digests"]["rows"][4] = "0" * 64
    file.write_text(json.dumps(changed))
    done = CliRunner().invoke(app, ["replay", str(file), "--server", url])
    assert done.exit_code == 1 and "answer 1: the logits of token 4 differ" in done.output


def test_bad_requests_are_refused_by_name(client: Any, url: str) -> None:
    def refused(path: str, data: bytes) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as found:
            urllib.request.urlopen(request)
        error = json.load(found.value)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return found.value.code, error

    alone = answers(chat(client, extra_body=DIGEST))
    good = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for change, name, status in REFUSED:
        for stream in (False, True):
            body = json.dumps({**good, **change, "stream": stream}).encode()
            code, error = refused("/v1/chat/completions", body)
            assert code == status and name in (error["param"], error["code"]), (change, error)
    for data in (b"{", b"[1]", b'"text"', b""):
        assert refused("/v1/chat/completions", data)[0] == 400
    for body in ({"prompt": ""}, {"prompt": []}, {"prompt": [400]}, {"prompt": 3}, {}, {"prompt": "x", "echo": True}):
        assert refused("/v1/completions", json.dumps(body).encode())[0] == 400
    assert refused("/v1/responses", b"{}")[0] == 404
    assert answers(chat(client, extra_body=DIGEST)) == alone
