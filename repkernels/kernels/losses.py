"""Losses of single elements on a GPU (SPEC.md, "Losses of elements"): one kernel for each of three results, with the
formula as a constant. A sum is made where the terms are, so that only lanes of blocks are stored."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import BLOCK, LANES, minus_zero
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded.exponential import exp, sigmoid, softplus
from repkernels.kernels.rounded.logarithm import log, log1p
from repkernels.kernels.scalar import bits, scalar
from repkernels.kernels.sizes import cdiv
from repkernels.kernels.sum import BUSY, sum_rows

SIZE = 2048


@triton.jit
def mse(x, y, v, parameter):
    d = x - y
    return d * d


@triton.jit
def mse_gradient(x, y, v, parameter):
    d = x - y
    return d + d


@triton.jit
def mse_curvature(x, y, v, parameter):
    return tl.full(x.shape, 2.0, x.dtype)


@triton.jit
def l1(x, y, v, parameter):
    return tl.abs(x - y)


@triton.jit
def sign_of(d):
    """1, -1, +0 or NaN."""
    return tl.where(d > 0.0, 1.0, tl.where(d < 0.0, -1.0, tl.where(d == 0.0, 0.0, d))).to(d.dtype)


@triton.jit
def l1_gradient(x, y, v, parameter):
    return sign_of(x - y)


@triton.jit
def smooth_l1(x, y, v, beta):
    z = tl.abs(x - y)
    return tl.where(z < beta, divided(z * 0.5 * z, beta), z - beta * 0.5)


@triton.jit
def smooth_l1_gradient(x, y, v, beta):
    d = x - y
    return tl.where(tl.abs(d) < beta, divided(d, beta), sign_of(d))


@triton.jit
def smooth_l1_curvature(x, y, v, beta):
    z = tl.abs(x - y)
    return tl.where(z < beta, divided(tl.full(z.shape, 1.0, z.dtype), beta), tl.where(z == z, 0.0, z).to(z.dtype))


@triton.jit
def huber(x, y, v, delta):
    z = tl.abs(x - y)
    return tl.where(z <= delta, z * 0.5 * z, delta * (z - delta * 0.5))


@triton.jit
def huber_gradient(x, y, v, delta):
    d = x - y
    return tl.where(tl.abs(d) <= delta, d, delta * sign_of(d))


@triton.jit
def huber_curvature(x, y, v, delta):
    z = tl.abs(x - y)
    return tl.where(z <= delta, 1.0, tl.where(z == z, 0.0, z)).to(z.dtype)


@triton.jit
def divided(a, b):
    """RN(a / b), b a scalar."""
    b = tl.broadcast_to(b, a.shape)
    if a.dtype == tl.float64:
        result = a / b
    else:
        result = tl.div_rn(a, b)
    return result


@triton.jit
def softplus_pair(x):
    """ln(1 + e^-x) and ln(1 + e^x): the smaller one is correctly rounded, the other is |x| more."""
    size = tl.abs(x)
    small = softplus(size * -1.0)
    large = size + small
    return tl.where(x < 0.0, large, small), tl.where(x < 0.0, small, large)


@triton.jit
def sigmoid_pair(x):
    """The sigmoids of -x and x: the smaller one is correctly rounded, the other is 1 minus it."""
    small = sigmoid(tl.abs(x) * -1.0)
    large = small * -1.0 + 1.0
    return tl.where(x < 0.0, large, small), tl.where(x < 0.0, small, large)


@triton.jit
def bce_with_logits(x, y, v, parameter):
    of_one, of_zero = softplus_pair(x)
    return v * y * of_one + (y * -1.0 + 1.0) * of_zero


@triton.jit
def bce_with_logits_gradient(x, y, v, parameter):
    below, above = sigmoid_pair(x)
    return (y * -1.0 + 1.0) * above - v * y * below


@triton.jit
def bce_with_logits_target_gradient(x, y, v, parameter):
    of_one, of_zero = softplus_pair(x)
    return v * of_one - of_zero


@triton.jit
def bce_with_logits_curvature(x, y, v, parameter):
    below, above = sigmoid_pair(x)
    return ((y * -1.0 + 1.0) + v * y) * (below * above)


@triton.jit
def bounded(x):
    """x, but not below -100."""
    return tl.where(x < -100.0, -100.0, x)


@triton.jit
def bce(x, y, v, parameter):
    return (y * bounded(log(x)) + (y * -1.0 + 1.0) * bounded(log1p(x * -1.0))) * -1.0


@triton.jit
def bce_gradient(x, y, v, parameter):
    d = (x * -1.0 + 1.0) * x
    return tl.div_rn(x - y, tl.where(d < 1e-12, 1e-12, d))


@triton.jit
def bce_target_gradient(x, y, v, parameter):
    return bounded(log1p(x * -1.0)) - bounded(log(x))


@triton.jit
def kl_div(x, y, v, parameter):
    return tl.where(y == 0.0, x * y * -1.0 + 0.0, y * (log(y) - x))


@triton.jit
def kl_div_gradient(x, y, v, parameter):
    return y * -1.0


@triton.jit
def kl_div_target_gradient(x, y, v, parameter):
    return log(y) - x + 1.0


@triton.jit
def kl_div_log(x, y, v, parameter):
    return exp(y) * (y - x)


@triton.jit
def kl_div_log_gradient(x, y, v, parameter):
    return exp(y) * -1.0


@triton.jit
def kl_div_log_target_gradient(x, y, v, parameter):
    return exp(y) * (y - x + 1.0)


@triton.jit
def nll(x, y, v, parameter):
    return x * y * -1.0


@triton.jit
def nll_gradient(x, y, v, parameter):
    return y * -1.0


FUNCTIONS = {
    "mse": mse,
    "mse_gradient": mse_gradient,
    "mse_curvature": mse_curvature,
    "l1": l1,
    "l1_gradient": l1_gradient,
    "smooth_l1": smooth_l1,
    "smooth_l1_gradient": smooth_l1_gradient,
    "smooth_l1_curvature": smooth_l1_curvature,
    "huber": huber,
    "huber_gradient": huber_gradient,
    "huber_curvature": huber_curvature,
    "bce_with_logits": bce_with_logits,
    "bce_with_logits_gradient": bce_with_logits_gradient,
    "bce_with_logits_target_gradient": bce_with_logits_target_gradient,
    "bce_with_logits_curvature": bce_with_logits_curvature,
    "bce": bce,
    "bce_gradient": bce_gradient,
    "bce_target_gradient": bce_target_gradient,
    "kl_div": kl_div,
    "kl_div_gradient": kl_div_gradient,
    "kl_div_target_gradient": kl_div_target_gradient,
    "kl_div_log": kl_div_log,
    "kl_div_log_gradient": kl_div_log_gradient,
    "kl_div_log_target_gradient": kl_div_log_target_gradient,
    "nll": nll,
    "nll_gradient": nll_gradient,
}


@triton.jit
def term(
    x, y, w, v, parameter, i, present, FUNCTION: tl.constexpr, WEIGHT: tl.constexpr, POSITIVE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The value of FUNCTION at elements i, times their weights."""
    a = tl.load(x + i, mask=present, other=0.0).to(WIDE)
    b = tl.load(y + i, mask=present, other=0.0).to(WIDE)
    if POSITIVE:
        c = tl.load(v + i, mask=present, other=0.0).to(WIDE)
    else:
        c = tl.full(a.shape, 1.0, WIDE)
    result = FUNCTION(a, b, c, scalar(parameter, WIDE))
    if WEIGHT:
        result = tl.load(w + i, mask=present, other=0.0).to(WIDE) * result
    return result


@triton.jit
def losses_kernel(
    x, y, w, v, g, out, N, stride_g, parameter, FUNCTION: tl.constexpr, WEIGHT: tl.constexpr, POSITIVE: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """SIZE elements of out, contiguous: FUNCTION, weighted, times g."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    result = term(x, y, w, v, parameter, i, i < N, FUNCTION, WEIGHT, POSITIVE, WIDE)
    if SCALE:
        result = result * tl.load(g + i * stride_g, mask=i < N, other=0.0).to(WIDE)
    tl.store(out + i, result.to(out.dtype.element_ty), mask=i < N)


@triton.jit
def losses_sum_kernel(
    x, y, w, v, out, N, parameter, FUNCTION: tl.constexpr, WEIGHT: tl.constexpr, POSITIVE: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """out[block, lane]: PART lanes of the sum of a block of terms; -0 where there is none."""
    groups = LANES // PART
    block = (tl.program_id(0) // groups).to(tl.int64)
    lane = (tl.program_id(0) % groups) * PART + tl.arange(0, PART)
    total = tl.broadcast_to(minus_zero(WIDE), (PART,))
    end = tl.minimum((block + 1) * BLOCK, N)
    for start in tl.range(block * BLOCK, end, LANES, loop_unroll_factor=4):
        i = start + lane
        value = term(x, y, w, v, parameter, i, i < end, FUNCTION, WEIGHT, POSITIVE, WIDE)
        total += tl.where(i < end, value, minus_zero(WIDE))
    tl.store(out + block * LANES + lane, total)


def elementwise(
    name: str,
    x: Tensor,
    y: Tensor,
    w: Tensor | None,
    v: Tensor | None,
    g: Tensor | None,
    parameter: float,
) -> Tensor:
    """FUNCTIONS[name] of x and y, times w, times g, rounded once to x's dtype; contiguous.

    x, y, w, v: contiguous, of one shape. v: the weight of positive targets. g: contiguous of that shape, or 0-d.
    """
    out = torch.empty_like(x)
    stride = 0 if g is None or g.ndim == 0 else 1
    launch(
        losses_kernel, (cdiv(x.numel(), SIZE),), x, y, w, v, g, out, x.numel(), stride, bits(parameter),
        SCALE=g is not None, SIZE=SIZE, **_constants(name, x, w, v),
    )  # fmt: skip
    return out


def total(name: str, x: Tensor, y: Tensor, w: Tensor | None, v: Tensor | None, parameter: float) -> Tensor:
    """The SUM of FUNCTIONS[name] of x and y, times w, in row-major order -> (), fp32 or fp64."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if x.numel() == 0:
        return torch.zeros((), dtype=wide, device=x.device)
    blocks = cdiv(x.numel(), BLOCK.value)
    lanes = torch.empty((blocks, LANES.value), dtype=wide, device=x.device)
    part = LANES.value if blocks >= 2 * BUSY else 128
    launch(
        losses_sum_kernel, (blocks * (LANES.value // part),), x, y, w, v, lanes, x.numel(), bits(parameter),
        BLOCK=BLOCK.value, LANES=LANES.value, PART=part, **_constants(name, x, w, v),
    )  # fmt: skip
    # The SUM of a block's 1024 lanes is their halving.
    sums = sum_rows(lanes.t())
    return sums[0] if blocks == 1 else sum_rows(sums[:, None])[0]


def _constants(name: str, x: Tensor, w: Tensor | None, v: Tensor | None) -> dict[str, Any]:
    return {
        "FUNCTION": FUNCTIONS[name],
        "WEIGHT": w is not None,
        "POSITIVE": v is not None,
        "WIDE": tl.float64 if x.dtype == torch.float64 else tl.float32,
    }
