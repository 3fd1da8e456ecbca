"""Language models by name, with their tokenizers: SmolLM2, random weights, and what transformers loads."""

from pathlib import Path
from typing import Any

import torch

from repkernels import random
from repkernels.llm import smollm2
from repkernels.llm.bytes import byte_tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RANDOM = "random:"
_ROPE = {"llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192, "rope_theta": 500000.0}}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    },
    # SmolLM2's two shapes.
    "135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, "tie_word_embeddings": True,
    },
    "1.7b": {
        "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 130000.0}, "tie_word_embeddings": True,
    },
    # Llama 3.1 8B.
    "llama-8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_parameters": _ROPE["llama3"],
    },
}  # fmt: skip


def load(name: str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> tuple[Any, Any]:
    """A causal language model in evaluation mode on the device, and its tokenizer.

    name: "smollm2" (`repkernels.llm.smollm2`); "random:tiny", "random:135m", "random:1.7b", "random:llama-8b": random
    weights of these shapes, the same on every machine, with a tokenizer of bytes and no end-of-sequence token; or a
    directory or name of the Hugging Face Hub.
    dtype: None: the checkpoint's own, bfloat16 for the others, whatever the device, as bits depend on it.

    Raises ValueError for an unknown shape, FileNotFoundError where smollm2 is not installed, OSError as transformers.
    """
    if name.startswith(RANDOM):
        return of_shape(name.removeprefix(RANDOM), dtype or torch.bfloat16, device)
    model: Any
    if name == "smollm2":
        model, tokenizer = smollm2.load(dtype or torch.bfloat16)
        return model.to(device), tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype or "auto")
    return model.to(device).eval().requires_grad_(False), AutoTokenizer.from_pretrained(name)


def of_shape(shape: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> tuple[Any, Any]:
    """A Llama with normal weights, parameter i from the generator of seed i; norms are 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if shape not in SHAPES:
        raise ValueError(f"model: expected {RANDOM} and one of {', '.join(SHAPES)}, got {RANDOM}{shape}")
    config = LlamaConfig(
        **SHAPES[shape], bos_token_id=None, eos_token_id=None, pad_token_id=None, dtype=dtype, attention_dropout=0.0
    )
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device=device)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    # A small model is to have answers that depend on what was asked.
    std = 0.2 if config.hidden_size < 512 else 0.02
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.ndim == 1:
                parameter.fill_(1)
            else:
                generator = random.Generator(number)
                parameter.copy_(random.normal(parameter.shape, std=std, generator=generator, device=device))
    return model.eval().requires_grad_(False), byte_tokenizer()


def save(name: str, directory: Path, dtype: torch.dtype | None = None) -> None:
    """Writes a model and its tokenizer as transformers loads them (safetensors), for machines without the original."""
    model, tokenizer = load(name, dtype)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
