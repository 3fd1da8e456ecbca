"""D of attention's gradients: the SUM over Ev of RN(dO * O) (SPEC.md, "Attention", "Gradients")."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import minus_zero
from repkernels.kernels.launch import launch
from repkernels.kernels.rows import halve
from repkernels.kernels.sizes import cdiv, next_power_of_2


@triton.jit(do_not_specialize=["HEADS", "L"])
def attention_delta_kernel(
    grad, out, d, HEADS, L, EV, stride_gb, stride_gh, stride_gl, stride_ge, stride_ob, stride_oh, stride_ol, stride_oe,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """d (B, HEADS, L), contiguous, of ROWS queries of one head."""
    tiles = tl.cdiv(L, ROWS)
    item = tl.program_id(0) // tiles
    b, h = (item // HEADS).to(tl.int64), (item % HEADS).to(tl.int64)
    i = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    query = i.to(tl.int64)
    e = tl.arange(0, WIDTH)
    place = (i < L)[:, None] & (e < EV)[None, :]
    at = (b * stride_gb + h * stride_gh + query * stride_gl)[:, None] + e[None, :] * stride_ge
    x = tl.load(grad + at, mask=place, other=0.0).to(tl.float32)
    at = (b * stride_ob + h * stride_oh + query * stride_ol)[:, None] + e[None, :] * stride_oe
    x = x * tl.load(out + at, mask=place, other=0.0).to(tl.float32)
    total = halve(tl.where(place, x, minus_zero(tl.float32)), ROWS, WIDTH)
    tl.store(d + (tl.cast(item, tl.int64) * L + query)[:, None], total, mask=(i < L)[:, None])


def delta(grad: Tensor, out: Tensor, d: Tensor) -> None:
    """Writes d (B, H, L), contiguous fp32, from grad and out (B, H, L, Ev), any strides."""
    width = next_power_of_2(out.shape[3])
    rows = max(2, 4096 // width)
    batch, heads, L, columns = out.shape
    launch(
        attention_delta_kernel, (cdiv(L, rows) * batch * heads,), grad, out, d, heads, L, columns, *grad.stride(),
        *out.stride(), ROWS=rows, WIDTH=width,
    )  # fmt: skip
