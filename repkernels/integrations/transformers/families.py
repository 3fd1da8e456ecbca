"""What each class of a supported model becomes; who is not named here is refused."""

from functools import cache
from importlib import import_module
from typing import Any

import torch
from transformers import activations

from repkernels import nn
from repkernels.integrations.transformers import layers
from repkernels.integrations.transformers.language_model import LanguageModel, SoftCappedLanguageModel
from repkernels.integrations.transformers.residuals import DecoderLayer, has_this_form
from repkernels.integrations.transformers.variants import Variant

# Modules of transformers.models, and how their classes' names begin. SmolLM2 is a Llama.
FAMILIES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
    "phi": "Phi",
    "phi3": "Phi3",
    "smollm3": "SmolLM3",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3Moe",
}
_OFFSET_NORMS = {"gemma", "gemma2", "gemma3"}

# Classes by the rest of their name. None: they compute nothing but sums of two tensors and calls of their children.
_PARTS: dict[str, type[Variant] | None] = {
    "Attention": layers.Attention,
    "DecoderLayer": None,
    "Experts": layers.Experts,
    "ForCausalLM": LanguageModel,
    "MLP": layers.GatedMLP,
    "Model": None,
    "RMSNorm": layers.RMSNorm,
    "RotaryEmbedding": layers.Rotary,
    "SparseMoeBlock": None,
    "TextModel": None,
    "TextScaledWordEmbedding": layers.ScaledEmbedding,
    "TopKRouter": layers.TopKRouter,
}
_TORCH: dict[type, type | None] = {
    torch.nn.Linear: nn.Linear,
    torch.nn.Embedding: nn.Embedding,
    torch.nn.LayerNorm: nn.LayerNorm,
    torch.nn.Dropout: nn.Dropout,
    torch.nn.ModuleList: None,
    torch.nn.Identity: None,
}
_ACTIVATIONS: dict[type, type[Variant]] = {
    torch.nn.SiLU: layers.SiLU,
    activations.SiLUActivation: layers.SiLU,
    activations.GELUActivation: layers.GELU,
    activations.GELUTanh: layers.GELUTanh,
    activations.NewGELUActivation: layers.GELUTanh,
}


@cache
def counterparts() -> dict[type, type | None]:
    """For each known class: a class of this library to change into, one to put above it, or None to leave it."""
    found: dict[type, type | None] = {**_TORCH, **_ACTIVATIONS}
    for family, prefix in FAMILIES.items():
        try:
            module: Any = import_module(f"transformers.models.{family}.modeling_{family}")
        except ImportError:
            continue
        for part, ours in _PARTS.items():
            theirs = getattr(module, prefix + part, None)
            if theirs is not None:
                found[theirs] = ours
                if part == "DecoderLayer" and has_this_form(theirs):
                    found[theirs] = DecoderLayer
        if family in _OFFSET_NORMS:
            found[getattr(module, f"{prefix}RMSNorm")] = layers.OffsetRMSNorm
        if family == "phi":
            found[module.PhiMLP] = None  # two layers and an activation
        if family == "phi3":
            found[module.Phi3MLP] = layers.FusedGatedMLP
        if family in ("gemma2", "gemma3"):
            found[getattr(module, f"{prefix}ForCausalLM")] = SoftCappedLanguageModel
        if family == "gemma3":
            del found[module.Gemma3Model]  # it sees images
    return found
