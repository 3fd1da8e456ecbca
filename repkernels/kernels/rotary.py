"""Rotary position embeddings on a GPU (SPEC.md, "Rotary embeddings"): tables by element, q and k in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.overlap import begin
from repkernels.kernels.rounded.trigonometric import cos as cosine
from repkernels.kernels.rounded.trigonometric import sin as sine
from repkernels.kernels.scalar import bits, scalar
from repkernels.kernels.sizes import cdiv, next_power_of_2

# Frequencies of positions, and pairs of elements, that a program handles.
ANGLES = 512
PAIRS = 512


@triton.jit(do_not_specialize=["count"])
def tables_kernel(
    positions, inv_freq, cos, sin, count, scaling: tl.int64, F: tl.constexpr, INTERLEAVED: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """cos, sin: (positions, 2 F). count: of positions times F."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = i < count
    row, f = i // F, i % F
    position = tl.load(positions + row, mask=mask, other=0).to(tl.float64)
    frequency = tl.load(inv_freq + f, mask=mask, other=0.0).to(tl.float64)
    angle = (position * frequency).to(tl.float32)
    scale = scalar(scaling, tl.float32)
    c = (cosine(angle) * scale).to(cos.dtype.element_ty)
    s = (sine(angle) * scale).to(sin.dtype.element_ty)
    if INTERLEAVED:
        first, second = row * (2 * F) + 2 * f, row * (2 * F) + 2 * f + 1
    else:
        first, second = row * (2 * F) + f, row * (2 * F) + F + f
    tl.store(cos + first, c, mask=mask)
    tl.store(cos + second, c, mask=mask)
    tl.store(sin + first, s, mask=mask)
    tl.store(sin + second, s, mask=mask)


@triton.jit
def rotate_rows(
    x, out, cos, sin, program, rows, n1, n2, x0, x1, x2, y0, y1, y2, t0, t1, t2, ROTATED: tl.constexpr,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr, BR: tl.constexpr, INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
):  # fmt: skip
    """BR rows: of each the first ROTATED of SIZE elements. WIDTH, REST: powers of two that hold its pairs, its rest."""
    HALF: tl.constexpr = ROTATED // 2
    row = program * BR + tl.arange(0, BR)
    i2, i1, i0 = (row % n2).to(tl.int64), (row // n2 % n1).to(tl.int64), (row // n2 // n1).to(tl.int64)
    source = x + (i0 * x0 + i1 * x1 + i2 * x2)[:, None]
    target = out + (i0 * y0 + i1 * y1 + i2 * y2)[:, None]
    by = (i0 * t0 + i1 * t1 + i2 * t2)[:, None]
    here = (row < rows)[:, None]
    j = tl.arange(0, WIDTH)[None, :]
    mask = here & (j < HALF)
    if INTERLEAVED:
        first, second = 2 * j, 2 * j + 1
    else:
        first, second = j, HALF + j
    a = tl.load(source + first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + second, mask=mask, other=0.0).to(tl.float32)
    c1 = tl.load(cos + by + first, mask=mask, other=0.0).to(tl.float32)
    c2 = tl.load(cos + by + second, mask=mask, other=0.0).to(tl.float32)
    s1 = tl.load(sin + by + first, mask=mask, other=0.0).to(tl.float32)
    s2 = tl.load(sin + by + second, mask=mask, other=0.0).to(tl.float32)
    if INVERSE:
        p = a * c1 + b * s2
        q = b * c2 - a * s1
    else:
        p = a * c1 - b * s1
        q = b * c2 + a * s2
    tl.store(target + first, p.to(out.dtype.element_ty), mask=mask)
    tl.store(target + second, q.to(out.dtype.element_ty), mask=mask)
    if REST:
        j = ROTATED + tl.arange(0, REST)[None, :]
        mask = here & (j < SIZE)
        tl.store(target + j, tl.load(source + j, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["q_programs", "q_rows", "k_rows", "q1", "q2", "k1", "k2"])
def rotary_kernel(
    q, k, q_out, k_out, cos, sin, q_programs, q_rows, q1, q2, a0, a1, a2, b0, b1, b2, c0, c1, c2,
    k_rows, k1, k2, d0, d1, d2, e0, e1, e2, f0, f1, f2, ROTATED: tl.constexpr, WIDTH: tl.constexpr,
    Q_SIZE: tl.constexpr, Q_REST: tl.constexpr, K_SIZE: tl.constexpr, K_REST: tl.constexpr, BR: tl.constexpr,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The first programs rotate q, the others k. Strides of each: of x, of the result, of cos and sin."""
    begin(OVERLAP)
    program = tl.program_id(0)
    if program < q_programs:
        rotate_rows(q, q_out, cos, sin, program, q_rows, q1, q2, a0, a1, a2, b0, b1, b2, c0, c1, c2, ROTATED, Q_SIZE,
                    WIDTH, Q_REST, BR, INTERLEAVED, INVERSE)  # fmt: skip
    else:
        rotate_rows(k, k_out, cos, sin, program - q_programs, k_rows, k1, k2, d0, d1, d2, e0, e1, e2, f0, f1, f2,
                    ROTATED, K_SIZE, WIDTH, K_REST, BR, INTERLEAVED, INVERSE)  # fmt: skip


def tables(positions: Tensor, inv_freq: Tensor, scaling: float, interleaved: bool, cos: Tensor, sin: Tensor) -> None:
    """cos and sin (..., 2 F), contiguous, of positions (P,) int32 or int64 times inv_freq (F,) fp32."""
    count = cos.numel() // 2
    launch(tables_kernel, (cdiv(count, ANGLES),), positions, inv_freq, cos, sin, count, bits(scaling),
           F=inv_freq.shape[0], INTERLEAVED=interleaved, SIZE=ANGLES)  # fmt: skip


def rotate(q: list[Tensor], k: list[Tensor], interleaved: bool, inverse: bool) -> None:
    """The rotation of q and of k, each as (x, out, cos, sin) of four axes; cos and sin broadcast, (..., R).

    inverse: the transposed rotation, by minus the angle.
    """
    rotated = q[2].shape[3]
    width = next_power_of_2(rotated // 2)
    BR = max(1, PAIRS // width)
    programs, sides = [], []
    for x, out, cos, _ in (q, k):
        shape = x.shape
        rows = shape[0] * shape[1] * shape[2] if shape[3] else 0
        programs.append(cdiv(rows, BR))
        sides += [rows, shape[1], shape[2], *x.stride()[:3], *out.stride()[:3], *cos.stride()[:3]]
    (q_size, q_rest), (k_size, k_rest) = ((x.shape[3], _rest(x, rotated)) for x in (q[0], k[0]))
    overlap = can_overlap(q[0].device)
    launch(rotary_kernel, (sum(programs),), q[0], k[0], q[1], k[1], q[2], q[3], programs[0], *sides, ROTATED=rotated,
           WIDTH=width, Q_SIZE=q_size, Q_REST=q_rest, K_SIZE=k_size, K_REST=k_rest, BR=BR, INTERLEAVED=interleaved,
           INVERSE=inverse, OVERLAP=overlap, overlap=overlap, num_warps=4)  # fmt: skip


def _rest(x: Tensor, rotated: int) -> int:
    return next_power_of_2(x.shape[3] - rotated) if x.shape[3] > rotated else 0
