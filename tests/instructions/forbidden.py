"""Small kernels that each do one forbidden thing: a check that lets one through is broken."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

N = 256


@triton.jit
def elementwise(x, y, WHAT: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    w = tl.load(y + at)
    if WHAT == "exp":
        v = tl.exp(v)
    elif WHAT == "exp2":
        v = tl.exp2(v)
    elif WHAT == "log":
        v = tl.log(v)
    elif WHAT == "sin":
        v = tl.sin(v)
    elif WHAT == "sqrt":
        v = tl.sqrt(v)
    elif WHAT == "rsqrt":
        v = tl.rsqrt(v)
    elif WHAT == "erf":
        v = tl.erf(v)
    elif WHAT == "floor":
        v = tl.floor(v)
    elif WHAT == "divide":
        v = v / w
    elif WHAT == "maximum":
        v = tl.maximum(v, w)
    elif WHAT == "scan":
        v = tl.cumsum(v)
    elif WHAT == "sum":
        v = v + tl.sum(v)
    elif WHAT == "multiply_add":
        v = v * w + 1.0
    tl.store(x + at, v)


@triton.jit
def atomic(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.atomic_add(y + at // 2, tl.load(x + at))


@triton.jit
def product(x, y, z, PRECISION: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision=PRECISION))


def _elementwise(what: str, **options: bool) -> Callable[[], None]:
    def start() -> None:
        x = torch.empty(N)
        elementwise[(1,)](x, x, WHAT=what, N=N, **{"enable_fp_fusion": False} | options)

    return start


def _atomic() -> None:
    x = torch.empty(N)
    atomic[(1,)](x, x, N=N, enable_fp_fusion=False)


def _product(dtype: torch.dtype, precision: str) -> Callable[[], None]:
    def start() -> None:
        x = torch.empty(64, 64, dtype=dtype)
        product[(1,)](x, x, torch.empty(64, 64), PRECISION=precision, N=64, enable_fp_fusion=False)

    return start


FORBIDDEN: dict[str, Callable[[], None]] = {
    **{
        what: _elementwise(what)
        for what in ("exp", "exp2", "log", "sin", "sqrt", "rsqrt", "erf", "floor", "divide", "maximum", "scan", "sum")
    },
    "fusion": _elementwise("multiply_add", enable_fp_fusion=True),
    "atomic": _atomic,
    "tf32": _product(torch.float32, "tf32"),
    "float_tensor_core": _product(torch.bfloat16, "ieee"),
}

# AMD's newer matrix cores have no TF32, and Triton says so.
NOT_COMPILED = {("tf32", "gfx950")}
