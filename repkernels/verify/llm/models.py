"""The models that the kit asks, and the prompts."""

from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import torch

from repkernels.philox import words
from repkernels.verify.llm.batching import Prompt

TINY = "tiny"


def load(name: str, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    """(model, tokenizer) of a directory or a name that transformers knows; `tiny` is a random Llama without one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if name == TINY:
        return tiny(dtype, device), None
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    model = model.to(device).eval()
    try:
        return model, AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError):
        return model, None


def tiny(dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Any:
    """A random Llama of two layers, the same one on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from repkernels import random

    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval().requires_grad_(False)
    for number, parameter in enumerate(model.parameters()):
        if parameter.ndim == 2:
            generator = random.Generator(number)
            parameter.copy_(random.normal(parameter.shape, std=0.2, generator=generator))
    return model.to(device=device, dtype=dtype)


def prompts(tokenizer: Any, vocabulary: int) -> Callable[[int, int], Prompt]:
    """`prompt(length, number)`: passages of `text` from different places; random ids without a tokenizer."""
    if tokenizer is None:
        return lambda length, number: [int(w) % vocabulary for w in words(number, 0, length)]
    ids = tokenizer(text()[:200_000], add_special_tokens=False)["input_ids"]

    def prompt(length: int, number: int) -> Prompt:
        start = number * 151 % (len(ids) - length)
        return ids[start : start + length]

    return prompt


def text() -> str:
    """English that every Python has: the language's own documentation, without its title lines."""
    pages = [topics[name] for name in sorted(topics)]
    lines = [line.strip() for page in pages for line in page.splitlines() if set(line.strip()) - set('*=-~^"+')]
    return "\n".join(line for line in lines if len(line) > 40)
