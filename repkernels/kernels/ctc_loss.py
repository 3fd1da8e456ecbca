"""CTC loss on a GPU (SPEC.md, "ctc_loss"): a program walks one sample's labels through time, forwards or backwards."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import exp_f32, ln_f32
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2

SIZE = 1024
COLS = 128


@triton.jit
def log_sum(a, b, c):
    """ln(e^a + e^b + e^c)."""
    m = tl.where(b > a, b, a)
    m = tl.where(c > m, c, m)
    m = tl.where(m == float("-inf"), 0.0, m)
    return m + ln_f32((exp_f32(a - m) + exp_f32(b - m)) + exp_f32(c - m))


@triton.jit
def label_at(targets, place, blank, mask):
    """The label at `place` of blank, y_0, blank, y_1, ..., blank."""
    odd = place % 2 == 1
    y = tl.load(targets + place // 2, mask=mask & odd, other=0)
    return tl.where(odd, y, blank)


@triton.jit
def walk_kernel(
    x, targets, input_lengths, target_lengths, out, loss, samples, L, T, S, blank, x_t, x_n, x_c, BLOCK: tl.constexpr,
    LOSS: tl.constexpr,
):  # fmt: skip
    """out[direction, n, t, s]: sums over the ways to label s at t, from the start (0) or the end (1). LOSS: (N,)."""
    n = tl.program_id(0).to(tl.int64)
    back = tl.program_id(1)
    length = tl.load(input_lengths + n).to(tl.int32)
    count = 2 * tl.load(target_lengths + n).to(tl.int32) + 1
    targets += n * L
    x += n * x_n
    out += (back.to(tl.int64) * samples + n) * T * S
    nothing = float("-inf")
    for step in range(length):
        t = tl.where(back == 0, step, length - 1 - step).to(tl.int64)
        before = out + tl.where(back == 0, t - 1, t + 1) * S
        for first in range(0, count, BLOCK):
            s = first + tl.arange(0, BLOCK)
            inside = s < count
            place = tl.where(back == 0, s, count - 1 - s)
            ahead = tl.where(back == 0, 1, -1)
            label = label_at(targets, place, blank, inside)
            skip = inside & (s >= 2) & (s % 2 == 1)
            skip &= label != label_at(targets, place - 2 * ahead, blank, skip)
            later = inside & (step > 0)
            a = tl.load(before + place, mask=later, other=nothing)
            b = tl.load(before + (place - ahead), mask=later & (s >= 1), other=nothing)
            c = tl.load(before + (place - 2 * ahead), mask=later & skip, other=nothing)
            p = tl.load(x + t * x_t + label.to(tl.int64) * x_c, mask=inside, other=0.0).to(tl.float32)
            start = tl.where(s < 2, p, nothing)
            tl.store(out + t * S + place, tl.where(step > 0, log_sum(a, b, c) + p, start), mask=inside)
        # The next step reads what other threads have written.
        tl.debug_barrier()
    if LOSS:
        one = tl.arange(0, 1)
        last = out + tl.maximum(length - 1, 0).to(tl.int64) * S + count - 1 + one
        some = length + one > 0
        a = tl.load(last, mask=some, other=nothing)
        b = tl.load(last - 1, mask=some & (count + one > 1), other=nothing)
        total = 0.0 - log_sum(a, b, tl.full((1,), nothing, tl.float32))
        total = tl.where((length == 0) & (count == 1), 0.0, total)
        tl.store(loss + n + one, total, mask=back + one == 0)


def walk(
    x: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    out: Tensor,
    loss: Tensor | None,
) -> None:
    """out (directions, N, T, S) fp32: the walk from the start, and the one from the end if there are two; loss (N,).

    x (T, N, C), any strides. targets (N, L) int64, contiguous; lengths (N,) int64.
    """
    directions, samples, steps, labels = out.shape
    block = min(SIZE, next_power_of_2(labels))
    launch(
        walk_kernel, (samples, directions), x, targets, input_lengths, target_lengths, out,
        out if loss is None else loss, samples, targets.shape[1], steps, labels, blank, *x.stride(), BLOCK=block,
        LOSS=loss is not None, num_warps=max(1, min(8, block // 128)), num_stages=1,
    )  # fmt: skip


@triton.jit
def occupancy_kernel(
    x, targets, input_lengths, target_lengths, walks, loss, out, index, samples, L, C, T, S, blank, x_t, x_n, x_c,
    COLS: tl.constexpr,
):  # fmt: skip
    """out[n, s, t]: how likely label s is at t; index[n, s]: where it adds to, -1 beyond the sample's labels."""
    row = tl.program_id(0).to(tl.int64)
    n = row // S
    s = row % S
    length = tl.load(input_lengths + n)
    count = 2 * tl.load(target_lengths + n) + 1
    t = tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS)
    # A vector, since a mask of scalars is none.
    present = s + tl.zeros((COLS,), tl.int64) < count
    label = label_at(targets + n * L, tl.zeros((COLS,), tl.int64) + s, blank, present)
    inside = (t < length) & present
    at = walks + (n * T + t) * S + s
    both = tl.load(at, mask=inside, other=0.0) + tl.load(at + samples * T * S, mask=inside, other=0.0)
    p = tl.load(x + t * x_t + n * x_n + label * x_c, mask=inside, other=0.0).to(tl.float32)
    v = (both - p) + tl.load(loss + n)
    v = exp_f32(tl.where(v > 0.0, 0.0, v))
    v = tl.where(both == float("-inf"), 0.0, v)
    tl.store(out + row * T + t, tl.where(inside, v, 0.0), mask=t < T)
    tl.store(index + row + t, tl.where(present, n * C + label, -1), mask=t == 0)


@triton.jit
def ctc_gradient_kernel(
    g, x, sums, loss, input_lengths, out, total, N, C, T, x_t, x_n, x_c, ZERO: tl.constexpr, SIZE: tl.constexpr
):
    """SIZE elements of out (T, N, C), contiguous; sums (N * C, T)."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = e < total
    c = e % C
    n = (e // C) % N
    t = e // C // N
    p = tl.load(x + t * x_t + n * x_n + c * x_c, mask=mask, other=0.0).to(tl.float32)
    p = exp_f32(tl.where(p > 0.0, 0.0, p))
    v = p - tl.load(sums + (n * C + c) * T + t, mask=mask, other=0.0)
    v = v * tl.load(g + n, mask=mask, other=0.0)
    v = tl.where(tl.load(loss + n, mask=mask, other=0.0) == float("inf"), 0.0 if ZERO else float("nan"), v)
    v = tl.where(t < tl.load(input_lengths + n, mask=mask, other=0), v, 0.0)
    tl.store(out + e, v.to(out.dtype.element_ty), mask=mask)


def occupancy(
    x: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    walks: Tensor,
    loss: Tensor,
    out: Tensor,
    index: Tensor,
) -> None:
    """out (N, S, T) fp32: e^(both walks - x + loss); index (N, S) int64: n * C + the label, or -1."""
    samples, labels, steps = out.shape
    launch(
        occupancy_kernel, (samples * labels, cdiv(steps, COLS)), x, targets, input_lengths, target_lengths,
        walks, loss, out, index, samples, targets.shape[1], x.shape[2], steps, labels, blank, *x.stride(), COLS=COLS,
    )  # fmt: skip


def gradient(g: Tensor, x: Tensor, sums: Tensor, loss: Tensor, input_lengths: Tensor, zero: bool, out: Tensor) -> None:
    """out (T, N, C), contiguous: (e^x - sums) * g; sums (N * C, T), g and loss (N,) fp32."""
    launch(
        ctc_gradient_kernel, (cdiv(out.numel(), SIZE),), g, x, sums, loss, input_lengths, out, out.numel(),
        x.shape[1], x.shape[2], x.shape[0], *x.stride(), ZERO=zero, SIZE=SIZE,
    )  # fmt: skip
