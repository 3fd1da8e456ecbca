"""Models by name: GGUF against transformers' reading of it, random weights, and a Llama of the reference."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from reference import llama, safetensors  # noqa: E402
from repkernels import digest  # noqa: E402
from repkernels.llm import gguf, models, smollm2  # noqa: E402
from repkernels.llm.endpoints import Completion  # noqa: E402
from repkernels.llm.engine import Batching, Engine  # noqa: E402
from repkernels.llm.text import Text  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_llama_is_the_references(dtype: str, tmp_path: Path) -> None:
    model, tokenizer = models.load("random:tiny", models.DTYPES[dtype])
    model.save_pretrained(tmp_path)
    shape = llama.Shape.of(json.loads((tmp_path / "config.json").read_text()))
    weights, stored = safetensors.load(tmp_path / "model.safetensors")
    prompt = list(range(40, 55))
    expected = llama.greedy(llama.Llama(weights, shape, stored, "fixed16"), prompt, 3).as_json()
    engine = Engine(model, tokenizer, "tiny", "fixed16", Batching(16, 16, 8))
    assert engine.fingerprint.weights == llama.weights_digest(weights, shape, stored)
    engine.start()
    try:
        endpoint = Completion(engine)
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "repkernels": {"digest": True}}
        found = asyncio.run(endpoint.respond(endpoint.read(body)))["repkernels"]["answers"][0]
    finally:
        engine.stop()
    assert found["tokens"] == expected["tokens"] and found["digests"] == expected["digests"]


def test_random_weights_have_one_digest() -> None:
    model, tokenizer = models.load("random:tiny")
    assert digest(model) == "3c13dc80b070734a65ad95f5e720f13da1c925ae93c9030ea6ec5188f4c0d927"
    text = "Ünïcode\n\t 日本 \U0001f600"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    with pytest.raises(ValueError, match=r"random:huge"):
        models.load("random:huge")


def test_gguf_as_ggml_defines_it(tmp_path: Path) -> None:
    """One block of each type, its numbers by the formulas of ggml-quants.c."""
    raw = np.arange(256, dtype=np.uint8)
    half = np.array([0.5, -1.25], np.float16).view(np.uint8)
    low, high = (raw[:16] & 15).astype(np.float32), (raw[:16] >> 4).astype(np.float32)
    quants = np.concatenate([low, high])
    blocks: dict[int, tuple[Any, Any]] = {
        2: (np.concatenate([half[:2], raw[:16]]), np.float32(0.5) * (quants - 8)),
        3: (np.concatenate([half, raw[:16]]), np.float32(0.5) * quants - np.float32(1.25)),
        8: (np.concatenate([half[:2], raw[:32]]), np.float32(0.5) * raw[:32]),
        0: (np.float32([1.5] * 32).view(np.uint8), np.float32([1.5] * 32)),
        1: (np.float16([1.5] * 32).view(np.uint8), np.float32([1.5] * 32)),
        30: ((np.float32([1.5] * 32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), np.float32([1.5] * 32)),
    }
    for kind, (data, values) in blocks.items():
        file = tmp_path / f"{kind}.gguf"
        file.write_bytes(_file(kind, data.tobytes()))
        found = gguf.read(file)
        assert found.metadata == {"name": "x", "sizes": [3, -4]}
        assert found.tensors["t"].shape == (2, 16) and (found.tensors["t"].ravel() == values).all()
    for data, words in ((b"GGML" + bytes(20), "no GGUF file"), (_file(12, bytes(144)), "ggml's type 12")):
        file = tmp_path / "bad.gguf"
        file.write_bytes(data)
        with pytest.raises(ValueError, match=words):
            gguf.read(file)


def _file(kind: int, data: bytes) -> bytes:
    def u32(*values: int) -> bytes:
        return np.array(values, "<u4").tobytes()

    def u64(*values: int) -> bytes:
        return np.array(values, "<u8").tobytes()

    def text(value: str) -> bytes:
        return u64(len(value)) + value.encode()

    head = b"GGUF" + u32(3) + u64(1, 2)
    head += text("name") + u32(8) + text("x") + text("sizes") + u32(9, 5) + u64(2) + np.array([3, -4], "<i4").tobytes()
    head += text("t") + u32(2) + u64(16, 2) + u32(kind) + u64(0)
    return head + bytes(-len(head) % 32) + data


def test_smollm2_is_what_transformers_reads() -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    try:
        path = smollm2.path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    ours, tokenizer = models.load("smollm2", torch.float32)
    assert digest(ours) == digest(theirs)
    text = "It's 2024:\n\n  x = 17 – naïve 日本<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_text_in_pieces() -> None:
    _, tokenizer = models.load("random:tiny")
    text = "naïve 日本 stop here"
    ids = tokenizer(text)["input_ids"]
    whole = Text(tokenizer)
    assert "".join([*map(whole.add, ids), whole.finish()]) == text
    pieces = Text(tokenizer, ("stop now", "stop h"))
    shown = [pieces.add(token) for token in ids]
    assert "".join(shown) == "naïve 日本 " and pieces.stopped and pieces.finish() == ""
    broken = Text(tokenizer)
    assert "".join([broken.add(0xE6), broken.add(0x97), broken.finish()]) == "\ufffd"
