"""Products of matrices and convolutions, below and above autograd."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.reproducible import library
from repkernels.reproducible.gradients import gradients

WHY = "the order of the sum over k is the library's choice, and changes with shapes and devices"
Number = int | float


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """torch.matmul."""
    return library.matmul(input, other)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2): `matmul` with a bias where input is one and both numbers are 1.

    Otherwise the product is rounded to its type, and then each multiplication and the sum.
    """
    if input.ndim == 1 and beta == 1 and alpha == 1 and input.shape == mat2.shape[-1:]:
        return library.matmul(mat1, mat2, bias=input)
    return _scaled_sum(input, library.matmul(mat1, mat2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2), the product rounded first, then each operation."""
    return _scaled_sum(input, library.matmul(batch1, batch2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec), the product rounded first, then each operation."""
    return _scaled_sum(input, library.matmul(mat, vec), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * the sum over b of batch1[b] @ batch2[b], which is one contraction, b outermost."""
    left = batch1.transpose(0, 1).flatten(1)
    return _scaled_sum(input, library.matmul(left, batch2.flatten(0, 1)), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * the outer product, each operation rounded."""
    return _scaled_sum(input, vec1[:, None] * vec2, beta, alpha)


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """torch's grouped product: each group of rows, or of the contracted axis, that ends at `offs`, as a `matmul`."""
    if bias is not None or (out_dtype is not None and out_dtype != mat_a.dtype):
        raise NotImplementedError("grouped_mm with a bias or another out_dtype is not supported")
    if offs is None:
        return library.matmul(mat_a, mat_b)
    ends = offs.tolist()
    borders = list(zip([0, *ends[:-1]], ends, strict=True))
    if mat_a.ndim == 2 and mat_b.ndim == 3:
        products = [library.matmul(mat_a[i:j], mat_b[k]) for k, (i, j) in enumerate(borders)]
        return torch.cat([*products, mat_a.new_zeros(mat_a.shape[0] - ends[-1], mat_b.shape[-1])])
    if mat_a.ndim == 3 and mat_b.ndim == 2:
        products = [library.matmul(mat_a[k], mat_b[:, i:j]) for k, (i, j) in enumerate(borders)]
        return torch.cat([*products, mat_b.new_zeros(mat_a.shape[1], mat_b.shape[1] - ends[-1])], 1)
    return torch.stack([library.matmul(mat_a[:, i:j], mat_b[i:j]) for i, j in borders])


def _scaled_sum(input: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # what input holds, even NaN, has no part
        return product.expand(torch.broadcast_shapes(input.shape, product.shape)).contiguous()
    return (input if beta == 1 else input * beta) + product


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, which takes a mask or is_causal."""
    if is_causal and attn_mask is not None:
        raise RuntimeError("attn_mask: must be None where is_causal is set")
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    if dropout_p:
        raise NotImplementedError("dropout inside of a fused attention is not supported below autograd")
    y = attention(query, key, value, attn_mask, 0.0, is_causal, scale, query.shape[-3] != key.shape[-3])
    return y, query.new_zeros(query.shape[:-1], dtype=torch.float32)


def _fused_attention_gradient(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _fused_attention(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]

    return gradients(forward, (query, key, value), grad_out)


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    y, lse = _fused_attention(query, key, value, dropout_p, is_causal, scale=scale)
    state = query.new_zeros(2, dtype=torch.uint64)
    return y, lse, None, None, query.shape[-2], key.shape[-2], state, state[0].clone(), query.new_empty(0)


def _flash_attention_gradient(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Any,
    cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor,
    philox_offset: Tensor, *, scale: float | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    operands = (grad_out, query, key, value, out, logsumexp)
    return _fused_attention_gradient(*operands, dropout_p, is_causal, scale=scale)


def _efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    y, lse = _fused_attention(query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale)
    nothing = query.new_zeros((), dtype=torch.int64)
    return y, lse, nothing, nothing.clone()


def _efficient_attention_gradient(
    grad_out_: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, out: Tensor,
    logsumexp: Tensor, philox_seed: Tensor, philox_offset: Tensor, dropout_p: float, grad_input_mask: Sequence[bool],
    is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _fused_attention(q, k, v, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]

    return gradients(forward, (query, key, value, attn_bias), grad_out_, grad_input_mask)


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: Any,
) -> Tensor:
    """aten's convolution: every kind in one."""
    axes = weight.ndim - 2
    each = [_all(v, axes) for v in (stride, padding, output_padding, dilation)]
    name = f"conv_transpose{axes}d" if transposed else f"conv{axes}d"
    function = getattr(functional, name, None)
    if function is None:
        raise NotImplementedError(f"this library has no {name}")
    if transposed:
        return function(input, weight, bias, each[0], each[1], each[2], groups, each[3])
    return function(input, weight, bias, each[0], each[1], each[3], groups)


def _all(value: Sequence[int], axes: int) -> list[int]:
    return [int(value[0])] * axes if len(value) == 1 else [int(v) for v in value]


def _convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    bias = None
    if output_mask[2]:
        bias = weight.new_zeros(weight.shape[1] * groups if transposed else weight.shape[0])

    def forward(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)

    return gradients(forward, (input, weight, bias), grad_output, output_mask)


ATEN = {
    "mm": matmul,
    "bmm": matmul,
    "mv": matmul,
    "dot": matmul,
    "vdot": matmul,
    "matmul": matmul,
    "linear": functional.linear,
    "addmm": addmm,
    "baddbmm": baddbmm,
    "addmv": addmv,
    "addbmm": addbmm,
    "addr": addr,
    "_grouped_mm": grouped_mm,
    "convolution": convolution,
    "_convolution": convolution,
    "convolution_overrideable": convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _fused_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _fused_attention_gradient,
    "_scaled_dot_product_flash_attention": _flash_attention,
    "_scaled_dot_product_flash_attention_backward": _flash_attention_gradient,
    "_scaled_dot_product_efficient_attention": _efficient_attention,
    "_scaled_dot_product_efficient_attention_backward": _efficient_attention_gradient,
}
CONTRACTIONS = frozenset(ATEN)
