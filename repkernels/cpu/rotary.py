"""Rotary position embeddings on the CPU (SPEC.md, "Rotary embeddings"): tables by element, rotations by row."""

import numpy as np
from torch import Tensor

from repkernels.cpu.blocks import flat
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import put, widened
from repkernels.cpu.rounded.trigonometric import cos as cosine
from repkernels.cpu.rounded.trigonometric import sin as sine
from repkernels.cpu.spread import spread
from repkernels.cpu.wide import narrow
from repkernels.subnormals import subnormals_kept

F32, F64 = np.float32, np.float64


def tables(positions: Tensor, inv_freq: Tensor, scaling: float, interleaved: bool, cos: Tensor, sin: Tensor) -> None:
    """cos and sin (..., 2 F), contiguous, of positions (P,) int32 or int64 times inv_freq (F,) fp32."""
    with subnormals_kept():
        scale = np.array([scaling], F32)
    wide = [np.empty(cos.shape, F32) for _ in range(2)]
    by_row = [x.reshape(len(positions), -1) for x in wide]
    spread(_tables, len(positions), 8 * cos.numel(), positions.long().numpy(), inv_freq.numpy(), scale, interleaved,
           *by_row)  # fmt: skip
    for out, x in zip((cos, sin), wide, strict=True):
        out.copy_(narrow(x, out.dtype))


@kernel
def _tables(start, stop, positions, inv_freq, scale, interleaved, cos, sin):
    state = keep_subnormals()
    count = inv_freq.size
    for i in range(start, stop):
        for f in range(count):
            angle = F32(F64(positions[i]) * F64(inv_freq[f]))
            c, s = cosine(angle) * scale[0], sine(angle) * scale[0]
            first, second = (2 * f, 2 * f + 1) if interleaved else (f, count + f)
            cos[i, first], cos[i, second] = c, c
            sin[i, first], sin[i, second] = s, s
    restore(state)


def rotate(q: list[Tensor], k: list[Tensor], interleaved: bool, inverse: bool) -> None:
    """The rotation of q and of k, each as (x, out, cos, sin) of four axes; cos and sin broadcast, (..., R).

    inverse: the transposed rotation, by minus the angle.
    """
    for x, out, cos, sin in (q, k):
        rows, rotated = x.shape[0] * x.shape[1] * x.shape[2], cos.shape[3]
        if x.numel() == 0:
            continue
        source, target = flat(x), flat(out)
        c, s = (flat(_once(t)) for t in (cos, sin))
        spread(_rotate, rows, 2 * x.numel(), source.array, source.strides, target.array, target.strides, c.array,
               s.array, c.strides, tuple(x.shape), rotated, interleaved, inverse)  # fmt: skip


def _once(x: Tensor) -> Tensor:
    """x in fp32, widened without the copies that broadcasting makes of it."""
    part = x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]
    return part.float().contiguous().expand(x.shape)


@kernel
def _rotate(start, stop, x, xs, out, ys, cos, sin, ts, sizes, rotated, interleaved, inverse):
    state = keep_subnormals()
    half = rotated // 2
    for row in range(start, stop):
        i2 = row % sizes[2]
        i1 = row // sizes[2] % sizes[1]
        i0 = row // (sizes[2] * sizes[1])
        at = i0 * xs[0] + i1 * xs[1] + i2 * xs[2]
        to = i0 * ys[0] + i1 * ys[1] + i2 * ys[2]
        by = i0 * ts[0] + i1 * ts[1] + i2 * ts[2]
        for j in range(half):
            first, second = (2 * j, 2 * j + 1) if interleaved else (j, half + j)
            a, b = widened(x[at + first]), widened(x[at + second])
            c1, c2 = cos[by + first], cos[by + second]
            s1, s2 = sin[by + first], sin[by + second]
            if inverse:
                put(out, to + first, a * c1 + b * s2)
                put(out, to + second, b * c2 - a * s1)
            else:
                put(out, to + first, a * c1 - b * s1)
                put(out, to + second, b * c2 + a * s2)
        for j in range(rotated, sizes[3]):
            out[to + j] = x[at + j]
    restore(state)
