"""A Llama, its greedy answer, and the digests of its logits: SPEC.md, "A decoder".

    python -m reference.llama DIRECTORY TOKEN ... [--new N] [--contract fixed16]

prints the digests of the weights that transformers saved in the directory, and of the answer to the tokens.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reference import activations, attention, digest, formats, matmul, rms_norm, rotary, safetensors

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Shape:
    """What config.json says of a Llama with the default rotary embedding."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    tied: bool
    ends: tuple[int, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        heads, rope, end = config["num_attention_heads"], config["rope_parameters"], config.get("eos_token_id")
        assert rope["rope_type"] == "default" and config["hidden_act"] == "silu"
        return cls(
            config["num_hidden_layers"], heads, config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads, config["rms_norm_eps"], rope["rope_theta"],
            config["tie_word_embeddings"], () if end is None else tuple(np.atleast_1d(end).tolist()),
        )  # fmt: skip


class Llama:
    """The model over a growing sequence: `logits(tokens)` appends tokens and gives the logits of the last one."""

    def __init__(self, weights: Tensors, shape: Shape, dtype: str, contract: str) -> None:
        self.weights, self.shape, self.dtype, self.contract = weights, shape, dtype, contract
        self.length = 0
        empty = np.zeros((1, shape.kv_heads, 0, shape.head_dim), np.float32)
        self.keys, self.values = [empty] * shape.layers, [empty] * shape.layers
        self.frequencies, self.scaling = rotary.frequencies(shape.head_dim, "default", shape.theta)
        self._quantized: dict[str, matmul.Quantized] = {}

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """fp32 (V,)."""
        positions = np.arange(self.length, self.length + len(tokens))
        tables = rotary.tables(positions, self.frequencies, self.scaling, self.dtype)
        x = self.weights["model.embed_tokens.weight"][list(tokens)]
        for layer in range(self.shape.layers):
            x = self._layer(layer, x, tables)
        self.length += len(tokens)
        x = self._norm("model.norm", x[-1:])
        head = "model.embed_tokens" if self.shape.tied else "lm_head"
        return self._linear(head, x)[0]

    def _layer(self, layer: int, x: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        name = f"model.layers.{layer}"
        x = self._sum(x, self._attention(layer, self._norm(f"{name}.input_layernorm", x), tables))
        y = self._norm(f"{name}.post_attention_layernorm", x)
        gate, up = self._linear(f"{name}.mlp.gate_proj", y), self._linear(f"{name}.mlp.up_proj", y)
        with np.errstate(all="ignore"):
            gated = formats.rounded(_silu(gate, self.dtype) * up, self.dtype)
        return self._sum(x, self._linear(f"{name}.mlp.down_proj", gated))

    def _attention(self, layer: int, x: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        name, shape = f"model.layers.{layer}.self_attn", self.shape

        def heads(part: str, count: int) -> np.ndarray:
            return self._linear(f"{name}.{part}", x).reshape(len(x), count, shape.head_dim).swapaxes(0, 1)[None]

        q = rotary.rotate(heads("q_proj", shape.heads), *tables, self.dtype)
        k = rotary.rotate(heads("k_proj", shape.kv_heads), *tables, self.dtype)
        self.keys[layer] = np.concatenate([self.keys[layer], k], axis=2)
        self.values[layer] = np.concatenate([self.values[layer], heads("v_proj", shape.kv_heads)], axis=2)
        rule = attention.Rule(self.contract, shape.head_dim**-0.5, causal=True)
        kv = self.keys[layer], self.values[layer]
        out, _ = attention.forward(q, *kv, self.dtype, rule, first_query=[self.length])
        return self._linear(f"{name}.o_proj", out[0].swapaxes(0, 1).reshape(len(x), -1))

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return rms_norm.forward(x, self.weights[f"{name}.weight"], self.shape.eps, self.dtype)

    def _sum(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return formats.rounded(x + y, self.dtype)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        weight = self.weights[f"{name}.weight"]
        if self.contract == "ordered":
            return matmul.linear(x, weight, None, self.dtype, self.contract)
        # As matmul.linear, with the weight quantised once.
        digits = matmul.DIGITS[self.contract]
        if name not in self._quantized:
            self._quantized[name] = matmul.quantize(weight, digits)
        products = matmul.fixed_scaled(x, weight.T, matmul.quantize(x, digits), self._quantized[name], digits)
        return matmul.stored(products, None, self.dtype)


@dataclass(frozen=True)
class Answer:
    """Tokens, and the digest of the logits (V,) of each."""

    tokens: list[int]
    rows: list[str]

    def as_json(self) -> dict[str, Any]:
        tokens = digest.tensor(np.array(self.tokens), "int64")
        return {
            "tokens": self.tokens,
            "digests": {"tokens": tokens, "logits": digest.sequence(self.rows), "rows": self.rows},
        }


def greedy(model: Llama, prompt: Sequence[int], new: int) -> Answer:
    """At most `new` tokens, each the lowest of the largest logits, up to one that ends the answer."""
    tokens: list[int] = []
    rows: list[str] = []
    following = list(prompt)
    while len(tokens) < new and not (tokens and tokens[-1] in model.shape.ends):
        logits = model.logits(following)
        rows.append(digest.tensor(logits, "float32"))
        tokens.append(int(logits.argmax()))
        following = tokens[-1:]
    return Answer(tokens, rows)


def weights_digest(weights: Tensors, shape: Shape, dtype: str) -> str:
    """The digest of the model's state_dict, in the order in which torch lists it."""
    layer = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
             "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")  # fmt: skip
    names = ["model.embed_tokens", *(f"model.layers.{i}.{part}" for i in range(shape.layers) for part in layer),
             "model.norm", "lm_head"]  # fmt: skip
    of = {name: "model.embed_tokens" if name == "lm_head" and shape.tied else name for name in names}
    return digest.mapping({f"{n}.weight": digest.tensor(weights[f"{of[n]}.weight"], dtype) for n in names})


def _silu(x: np.ndarray, dtype: str) -> np.ndarray:
    """Each of the values that occur once, since it is computed with many digits."""
    values, where = np.unique(x.view(np.uint32), return_inverse=True)
    return activations.forward("silu", dtype, values.view(np.float32))[where].reshape(x.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("tokens", type=int, nargs="+")
    parser.add_argument("--new", type=int, default=8)
    parser.add_argument("--contract", default="fixed16")
    options = parser.parse_args()
    shape = Shape.of(json.loads((options.directory / "config.json").read_text()))
    weights, dtype = safetensors.load(options.directory / "model.safetensors")
    answer = greedy(Llama(weights, shape, dtype, options.contract), options.tokens, options.new)
    of = {"contract": options.contract, "weights": weights_digest(weights, shape, dtype), "dtype": dtype}
    print(json.dumps({**of, "prompt": options.tokens, **answer.as_json()}, indent=1))


if __name__ == "__main__":
    main()
