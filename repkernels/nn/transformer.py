"""torch.nn's attention and transformer modules with defined bits (SPEC.md, "Attention"); they have no fast path."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import transformer as torchs

from repkernels.contract import ContractLike
from repkernels.nn import functional, init
from repkernels.nn.dropout import Dropout
from repkernels.nn.modules import Linear, NonDynamicallyQuantizableLinear
from repkernels.nn.norms import LayerNorm
from repkernels.ops.plain import add


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention, as `nn.functional.multi_head_attention_forward`.

    contract: as for `nn.Linear`, of all products; out_proj may have its own for the last one. The dropout is drawn
    from `repkernels.random`.
    """

    contract: ContractLike | None = None

    def _reset_parameters(self) -> None:
        """Draws the parameters anew: input projections, out_proj's weight, then the biases of keys and values."""
        weights = (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        for weight in weights:
            if weight is not None:
                init.xavier_uniform_(weight)
        self.out_proj.__class__ = NonDynamicallyQuantizableLinear
        bound = init.linear_bound(self.embed_dim)
        init.uniform_(self.out_proj.weight, -bound, bound)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        swap = self.batch_first and query.dim() == 3
        if swap:  # one tensor stays one
            q = query.transpose(0, 1)
            k = q if key is query else key.transpose(0, 1)
            v = q if value is query else k if value is key else value.transpose(0, 1)
            query, key, value = q, k, v
        out, weights = functional.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k,
            self.bias_v, self.add_zero_attn, self.dropout, self.out_proj.weight, self.out_proj.bias, self.training,
            key_padding_mask, need_weights, attn_mask, not self._qkv_same_embed_dim, self.q_proj_weight,
            self.k_proj_weight, self.v_proj_weight, None, None, average_attn_weights, is_causal, contract=self.contract,
            out_contract=getattr(self.out_proj, "contract", None),
        )  # fmt: skip
        return (out.transpose(0, 1) if swap else out), weights


def _activation(given: Any) -> Any:
    """This library's function of the same name for one of torch's; anything else as it is."""
    for owner in (torch.nn.functional, torch):
        name = getattr(given, "__name__", "")
        if name in functional.__all__ and getattr(owner, name, None) is given:
            return getattr(functional, name)
    return given


class _Layer(torch.nn.Module):
    """What both kinds of layers have: how they are made, and how blocks follow one another."""

    def _make(
        self: Any, attentions: tuple[str, ...], d_model: int, nhead: int, dim_feedforward: int, dropout: float,
        activation: Any, eps: float, batch_first: bool, norm_first: bool, bias: bool, factory: dict[str, Any],
    ) -> None:  # fmt: skip
        for name in attentions:
            options = {"dropout": dropout, "bias": bias, "batch_first": batch_first}
            self.add_module(name, MultiheadAttention(d_model, nhead, **options, **factory))
        self.add_module("linear1", Linear(d_model, dim_feedforward, bias=bias, **factory))
        self.add_module("dropout", Dropout(dropout))
        self.add_module("linear2", Linear(dim_feedforward, d_model, bias=bias, **factory))
        self.norm_first = norm_first
        blocks = len(attentions) + 1
        for k in range(blocks):
            self.add_module(f"norm{k + 1}", LayerNorm(d_model, eps=eps, bias=bias, **factory))
        for k in range(blocks):
            self.add_module(f"dropout{k + 1}", Dropout(dropout))
        self.activation = torchs._get_activation_fn(activation) if isinstance(activation, str) else activation

    def _block(self: Any, x: Tensor, norm: torch.nn.Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        return add(x, block(norm(x))) if self.norm_first else norm(add(x, block(x)))

    def _ff(self: Any, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(_activation(self.activation)(self.linear1(x))))

    @staticmethod
    def _refusal(module: Any) -> str | None:
        given = module.activation
        known = isinstance(given, torch.nn.Module) or _activation(given) is not given
        if known or getattr(given, "__module__", "").startswith("repkernels."):
            return None
        return f"its activation {given!r} is no function of repkernels.nn.functional; give a module instead"


class TransformerEncoderLayer(_Layer, torch.nn.TransformerEncoderLayer):
    """torch.nn.TransformerEncoderLayer of this library's modules; x + block is one addition.

    Parameters are drawn in the order self_attn, linear1, linear2.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = torch.nn.functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        self._make(
            ("self_attn",), d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, {"device": device, "dtype": dtype},
        )  # fmt: skip
        kinds = {torch.nn.ReLU: 1, torch.nn.functional.relu: 1, torch.nn.GELU: 2, torch.nn.functional.gelu: 2}
        of = next((c for c in type(self.activation).__mro__ if c in kinds), self.activation)
        self.activation_relu_or_gelu = kinds.get(of, 0)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        padding, mask = _masks(src, src_mask, src_key_padding_mask, "src_mask", "src_key_padding_mask")
        x = self._block(src, self.norm1, lambda x: self._sa_block(x, mask, padding, is_causal=is_causal))
        return self._block(x, self.norm2, self._ff_block)

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout2(self._ff(x))


class TransformerDecoderLayer(_Layer, torch.nn.TransformerDecoderLayer):
    """torch.nn.TransformerDecoderLayer of this library's modules; x + block is one addition.

    Parameters are drawn in the order self_attn, multihead_attn, linear1, linear2.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = torch.nn.functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        self._make(
            ("self_attn", "multihead_attn"), d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
            batch_first, norm_first, bias, {"device": device, "dtype": dtype},
        )  # fmt: skip

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        of_memory = memory_mask, memory_key_padding_mask, memory_is_causal
        x = self._block(tgt, self.norm1, lambda x: self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        x = self._block(x, self.norm2, lambda x: self._mha_block(x, memory, *of_memory))
        return self._block(x, self.norm3, self._ff_block)

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout3(self._ff(x))


def _masks(
    src: Tensor, mask: Tensor | None, padding: Tensor | None, mask_name: str, padding_name: str
) -> tuple[Tensor | None, Tensor | None]:
    """Both masks as what is added to scores."""
    torch_functional: Any = torch.nn.functional
    of_padding = torch_functional._canonical_mask(
        mask=padding,
        mask_name=padding_name,
        other_type=torch_functional._none_or_dtype(mask),
        other_name=mask_name,
        target_type=src.dtype,
    )
    of_mask = torch_functional._canonical_mask(
        mask=mask, mask_name=mask_name, other_type=None, other_name="", target_type=src.dtype, check_other=False
    )
    return of_padding, of_mask


class TransformerEncoder(torch.nn.TransformerEncoder):
    """torch.nn.TransformerEncoder: its layers one after another, never as nested tensors."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        padding, mask = _masks(src, mask, src_key_padding_mask, "mask", "src_key_padding_mask")
        length = torchs._get_seq_len(src, self.layers[0].self_attn.batch_first)
        causal = torchs._detect_is_causal_mask(mask, is_causal, length)
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=causal, src_key_padding_mask=padding)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(torch.nn.TransformerDecoder):
    """torch.nn.TransformerDecoder: its layers one after another."""


class Transformer(torch.nn.Transformer):
    """torch.nn.Transformer of this library's modules.

    Its layers are drawn as they are made, copies and all; then every parameter of two or more axes is drawn anew by
    `nn.init.xavier_uniform_`, in the order of parameters().
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = torch.nn.functional.relu,
        custom_encoder: Any | None = None,
        custom_decoder: Any | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        factory = {"device": device, "dtype": dtype}
        shape: tuple[Any, ...] = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        shape = (*shape, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory)

        if custom_encoder is None:
            layer = TransformerEncoderLayer(*shape, **factory)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm(), enable_nested_tensor=False)
        if custom_decoder is None:
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*shape, **factory), num_decoder_layers, norm())
        self.encoder = custom_encoder
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() > 1:
                init.xavier_uniform_(parameter)


class Bilinear(torch.nn.Bilinear):
    """torch.nn.Bilinear, as `nn.functional.bilinear`; `contract` as for `nn.Linear`."""

    contract: ContractLike | None = None

    def reset_parameters(self) -> None:
        """Draws weight and bias anew from U(-bound, bound), bound = 1 / sqrt(in1_features)."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return functional.bilinear(input1, input2, self.weight, self.bias, contract=self.contract)
