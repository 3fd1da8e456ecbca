"""Attention on a GPU (SPEC.md, "Attention"): operands as ops/attention.py gives them, by contract."""

import torch
from torch import Tensor

from repkernels.attention import Attention, Sequences
from repkernels.kernels.attention_arguments import along_last, call
from repkernels.kernels.attention_fixed import attention_fixed
from repkernels.kernels.attention_general import attention_general
from repkernels.kernels.attention_general_backward import Gradients, attention_general_backward
from repkernels.kernels.attention_native import attention_native
from repkernels.kernels.attention_native_backward import attention_native_backward
from repkernels.kernels.matmul_native import lacks_bfloat16


def attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, mask: Tensor | None, sinks: Tensor | None,
    sequences: Sequences, attention: Attention,
) -> None:  # fmt: skip
    """Writes out (B, Hq, L, Ev), any strides, and lse (B, Hq, L) fp32, of q (B, Hq, L, E), k and v as `sequences` has
    them. mask: (B, Hq, L, S), bool or float, any strides. sinks: (Hq,) fp32."""
    c = call(q, k, v, out, lse, mask, sinks, sequences, attention)
    if attention.contract == "native":
        _check(q)
        attention_native(c)
    elif attention.contract == "ordered":
        attention_general(c)
    else:
        attention_fixed(c)


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None,
    sinks: Tensor | None, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_scores: Tensor | None,
    sequences: Sequences, attention: Attention,
) -> None:  # fmt: skip
    """Writes the gradients of q, k, v, contiguous along the last axis, and that of the scores with their mask,
    (B, Hq, L, S) fp32, contiguous, from forward's operands and results. Dense or packed."""
    c = call(q, k, v, out, lse, mask, sinks, sequences, attention)
    if attention.contract == "native":
        _check(q)
        attention_native_backward(c, along_last(grad), grad_q, grad_k, grad_v, grad_scores)
    else:
        attention_general_backward(c, Gradients(grad, grad_q, grad_k, grad_v, grad_scores))


def _check(q: Tensor) -> None:
    if q.dtype == torch.bfloat16 and lacks_bfloat16(q.device):
        raise NotImplementedError(
            f"contract: native has no bfloat16 tensor cores on {q.device}; use fixed16 or float16"
        )
