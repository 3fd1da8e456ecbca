"""Gated activations and the soft cap, as functions of blocks of fp32 (SPEC.md, "Gated activations").

The activation is rounded to the operands' type before it is multiplied, as it would be stored: each type has its own.
"""

import torch
import triton
import triton.language as tl

from repkernels.kernels.derivatives import gelu_gradient, gelu_tanh_gradient, silu_gradient
from repkernels.kernels.rounded import half
from repkernels.kernels.rounded.error import gelu, gelu_tanh
from repkernels.kernels.rounded.exponential import silu, tanh


@triton.jit
def as_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def as_fp16(x):
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def swiglu(gate, up):
    return silu(gate) * up


@triton.jit
def swiglu_bf16(gate, up):
    return as_bf16(half.silu_bf16(gate)) * up


@triton.jit
def swiglu_fp16(gate, up):
    return as_fp16(half.silu_fp16(gate)) * up


@triton.jit
def swiglu_gate_gradient(g, gate, up):
    return silu_gradient(g * up, gate)


@triton.jit
def swiglu_gate_gradient_bf16(g, gate, up):
    return silu_gradient(as_bf16(g * up), gate)


@triton.jit
def swiglu_gate_gradient_fp16(g, gate, up):
    return silu_gradient(as_fp16(g * up), gate)


@triton.jit
def geglu(gate, up):
    return gelu(gate) * up


@triton.jit
def geglu_bf16(gate, up):
    return as_bf16(half.gelu_bf16(gate)) * up


@triton.jit
def geglu_fp16(gate, up):
    return as_fp16(half.gelu_fp16(gate)) * up


@triton.jit
def geglu_gate_gradient(g, gate, up):
    return gelu_gradient(g * up, gate)


@triton.jit
def geglu_gate_gradient_bf16(g, gate, up):
    return gelu_gradient(as_bf16(g * up), gate)


@triton.jit
def geglu_gate_gradient_fp16(g, gate, up):
    return gelu_gradient(as_fp16(g * up), gate)


@triton.jit
def geglu_tanh(gate, up):
    return gelu_tanh(gate) * up


@triton.jit
def geglu_tanh_bf16(gate, up):
    return as_bf16(half.gelu_tanh_bf16(gate)) * up


@triton.jit
def geglu_tanh_fp16(gate, up):
    return as_fp16(half.gelu_tanh_fp16(gate)) * up


@triton.jit
def geglu_tanh_gate_gradient(g, gate, up):
    return gelu_tanh_gradient(g * up, gate)


@triton.jit
def geglu_tanh_gate_gradient_bf16(g, gate, up):
    return gelu_tanh_gradient(as_bf16(g * up), gate)


@triton.jit
def geglu_tanh_gate_gradient_fp16(g, gate, up):
    return gelu_tanh_gradient(as_fp16(g * up), gate)


@triton.jit
def softcap(x, value):
    return tanh(tl.div_rn(x, value)) * value


@triton.jit
def softcap_gradient(g, x, value):
    t = tanh(tl.div_rn(x, value))
    return g * (1.0 - t * t)


FUNCTIONS = {
    "swiglu": swiglu,
    "swiglu_gate_gradient": swiglu_gate_gradient,
    "geglu": geglu,
    "geglu_gate_gradient": geglu_gate_gradient,
    "geglu_tanh": geglu_tanh,
    "geglu_tanh_gate_gradient": geglu_tanh_gate_gradient,
    "softcap": softcap,
    "softcap_gradient": softcap_gradient,
}

# The same with the roundings of a half type.
HALF = {
    ("swiglu", torch.bfloat16): swiglu_bf16,
    ("swiglu", torch.float16): swiglu_fp16,
    ("swiglu_gate_gradient", torch.bfloat16): swiglu_gate_gradient_bf16,
    ("swiglu_gate_gradient", torch.float16): swiglu_gate_gradient_fp16,
    ("geglu", torch.bfloat16): geglu_bf16,
    ("geglu", torch.float16): geglu_fp16,
    ("geglu_gate_gradient", torch.bfloat16): geglu_gate_gradient_bf16,
    ("geglu_gate_gradient", torch.float16): geglu_gate_gradient_fp16,
    ("geglu_tanh", torch.bfloat16): geglu_tanh_bf16,
    ("geglu_tanh", torch.float16): geglu_tanh_fp16,
    ("geglu_tanh_gate_gradient", torch.bfloat16): geglu_tanh_gate_gradient_bf16,
    ("geglu_tanh_gate_gradient", torch.float16): geglu_tanh_gate_gradient_fp16,
}
