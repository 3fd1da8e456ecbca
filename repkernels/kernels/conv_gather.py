"""Where the implicit products of a convolution find their operands (SPEC.md, "Convolutions").

Forward and input gradient are one computation: a result at pixel p is a contraction over k = (channel, tap) of a row of
weights with elements gathered around p. With a stride the input gradient falls into phases, the residues of a result
position: the taps that meet it are every so many, the same for the whole phase, so that a phase is again such a
computation, over fewer taps. Taps of other phases take no part but keep their place in k: chunks end where they would.
"""

import functools
import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution

CHUNK = 4096
MOST_BITS = 31


class Axis(NamedTuple):
    """One axis of some phases. Phase f has r = (rem + f * turn) mod gap and base = (r - rem - f * turn) / gap.

    Its results lie at i * gap + r for i < count, and tap t of result i reads the source at i * step + base + t * reach.
    first, every: which of all `kernel` taps of the axis tap 0 of phase 0 is (f more for phase f), and their distance.
    """

    source: int
    result: int
    count: int
    step: int
    gap: int
    rem: int
    turn: int
    phases: int
    reach: int
    first: int
    every: int
    kernel: int


class Strides(NamedTuple):
    """Elements between neighbours of a 5-D tensor."""

    n: int
    c: int
    d: int
    h: int
    w: int


class Pass(NamedTuple):
    """The phases that have the same numbers of taps, which are constants of a kernel."""

    axes: tuple[Axis, Axis, Axis]
    taps: tuple[int, int, int]

    @property
    def phases(self) -> int:
        return math.prod(axis.phases for axis in self.axes)

    @property
    def pixels(self) -> int:
        """Result positions of one phase of a sample, with those past the end where the phases are not of one length."""
        return math.prod(axis.count for axis in self.axes)

    @property
    def masked(self) -> bool:
        """Whether some tap reads outside the source."""
        return any(
            _lowest(axis, taps) < 0 or _highest(axis, taps) >= axis.source
            for axis, taps in zip(self.axes, self.taps, strict=True)
        )

    @property
    def whole(self) -> bool:
        """Whether every tap is one of the only phase's."""
        return all(axis.kernel == taps for axis, taps in zip(self.axes, self.taps, strict=True))

    def far(self, channels: int, s: Strides) -> bool:
        """Whether distances within a sample's channels and taps pass 32 bits."""
        reaches = [(taps - 1) * abs(axis.reach) for axis, taps in zip(self.axes, self.taps, strict=True)]
        return sum(n * abs(stride) for n, stride in zip((channels - 1, *reaches), s[1:], strict=True)) >= 2**31

    def vectors(self, x: Tensor) -> bool:
        """Whether results are four at a time in the source x: its whole planes, each element read once, in order."""
        if self.taps != (1, 1, 1) or any((a.step, a.gap, a.count, a.rem) != (1, 1, a.source, 0) for a in self.axes):
            return False
        (N, _, D, H, W), (n, c, d, h, w) = x.shape, x.stride()
        dense = (W == 1 or w == 1) and (H == 1 or h == W) and (D == 1 or d == H * W)
        aligned = x.data_ptr() % 16 == 0 and c % 4 == 0 and (N == 1 or n % 4 == 0)
        return dense and aligned and D * H * W % 4 == 0

    def weights(self, w: Tensor, multiple: int) -> Tensor:
        """The weights of these phases from w (G, rows, channels, kd, kh, kw): (G, phases, rows, channels * taps), with
        zeros up to a multiple.
        """
        for axis, (a, taps) in enumerate(zip(self.axes, self.taps, strict=True)):
            # Each kernel axis becomes two, phases and taps: (..., f, t, ...) is tap first + f + t * every.
            at = 3 + 2 * axis
            size = [*w.shape[:at], a.phases, taps, *w.shape[at + 1 :]]
            stride = [*w.stride()[:at], w.stride(at), w.stride(at) * a.every, *w.stride()[at + 1 :]]
            w = w.as_strided(size, stride, w.storage_offset() + a.first * w.stride(at))
        ordered = w.permute(0, 3, 5, 7, 1, 2, 4, 6, 8)
        matrix = ordered.reshape(w.shape[0], self.phases, w.shape[1], -1)
        return torch.nn.functional.pad(matrix, (0, -matrix.shape[3] % multiple)).contiguous()


# Nothing leaves it: a CUDA graph reads a table where it lies.
@functools.cache
def table(phases: Pass, channels: int, length: int, s: Strides, on: torch.device) -> Tensor:
    """(2, length) for k = (channel, tap) of the phases: distance in memory from tap 0 of channel 0, and bits as
    `inside_bits` numbers them that a position must have; past the last k a bit that none has.

    int32, or int64 where distances are far.
    """
    offsets, need = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    _, TH, TW = phases.taps
    for axis, taps, stride, shift in zip(phases.axes, phases.taps, s[2:], (TH + TW, TW, 0), strict=True):
        t = torch.arange(taps)
        offsets = (offsets[:, None] + t * (axis.reach * stride)).flatten()
        need = (need[:, None] | (1 << (t + shift))).flatten()
    offsets = (torch.arange(channels)[:, None] * s.c + offsets).flatten()
    kind = torch.int64 if phases.far(channels, s) else torch.int32
    past = length - len(offsets)
    offsets = torch.nn.functional.pad(offsets, (0, past))
    need = torch.nn.functional.pad(need.repeat(channels), (0, past), value=-(2**31))
    return torch.stack([offsets, need]).to(kind).to(on)


def _base(axis: Axis, phase: int) -> int:
    rem = axis.rem + phase * axis.turn
    return (rem % axis.gap - rem) // axis.gap


def _lowest(axis: Axis, taps: int) -> int:
    return min(_base(axis, f) for f in range(axis.phases)) + min(0, (taps - 1) * axis.reach)


def _highest(axis: Axis, taps: int) -> int:
    last = max(_base(axis, f) for f in range(axis.phases)) + (axis.count - 1) * axis.step
    return last + max(0, (taps - 1) * axis.reach)


def forward_pass(c: Convolution) -> Pass:
    """The one pass of a convolution: all taps, no phases. Positions outside the source are operands +0."""
    axes = [
        Axis(size, output, output, stride, 1, padding, 0, 1, dilation, 0, 1, kernel)
        for size, kernel, stride, padding, dilation, output in zip(*c[:6], strict=True)
    ]
    return Pass((axes[0], axes[1], axes[2]), c.kernel)


def gradient_passes(c: Convolution) -> Iterator[Pass]:
    """The passes of an input gradient. Positions outside the source take no part, and neither does any other tap."""
    for axes in product(*(_gradient_axes(c, axis) for axis in range(3))):
        yield Pass((axes[0][0], axes[1][0], axes[2][0]), (axes[0][1], axes[1][1], axes[2][1]))


def covers(c: Convolution) -> bool:
    """Whether the passes of an input gradient reach every result."""
    return all(
        math.gcd(stride, dilation) == 1 and kernel >= stride
        for stride, dilation, kernel in zip(c.stride, c.dilation, c.kernel, strict=True)
    )


def _gradient_axes(c: Convolution, axis: int) -> Iterator[tuple[Axis, int]]:
    """The axis of an input gradient for each number of taps that its phases have.

    Tap t and result position h meet at the source (h + padding - t * dilation) / stride if that is an integer. So the
    taps of one h are stride / gcd(stride, dilation) apart, and a phase is named by its first.
    """
    size, kernel, stride = c.size[axis], c.kernel[axis], c.stride[axis]
    padding, dilation, output = c.padding[axis], c.dilation[axis], c.output[axis]
    common = math.gcd(stride, dilation)
    every = stride // common
    count = -(-size // stride)
    most = -(-kernel // every)
    longer = kernel - every * (most - 1)
    for first, last, taps in ((0, longer, most), (longer, min(every, kernel), most - 1)):
        if last > first and taps:
            rem = first * dilation - padding
            axes = Axis(
                output, size, count, 1, stride, rem, dilation, last - first, -dilation // common, first, every, kernel
            )
            yield axes, taps


@triton.jit
def placed(axis, i, phase):
    """Where tap 0 of result i of the phase reads the source, and where the result lies."""
    rem = axis.rem + phase * axis.turn
    r = ((rem % axis.gap) + axis.gap) % axis.gap
    return i * axis.step + (r - rem) // axis.gap, i * axis.gap + r


@triton.jit
def inside_bits(at, axis, TAPS: tl.constexpr, SHIFT: tl.constexpr):
    """Bit SHIFT + t of each position: whether tap t reads inside the source."""
    bits = tl.zeros(at.shape, tl.int32)
    for t in tl.static_range(TAPS):
        position = at + t * axis.reach
        bits |= ((position >= 0) & (position < axis.source)).to(tl.int32) << (SHIFT + t)
    return bits


@triton.jit
def pixels_of(p, phase_d, phase_h, phase_w, d, h, w):
    """Number within a phase -> sample, source positions of tap 0, result positions, whether those exist."""
    iw = p % w.count
    ih = p // w.count % h.count
    it = p // (w.count * h.count) % d.count
    n = p // (w.count * h.count * d.count)
    sd, rd = placed(d, it, phase_d)
    sh, rh = placed(h, ih, phase_h)
    sw, rw = placed(w, iw, phase_w)
    return n, sd, sh, sw, rd, rh, rw, (rd < d.result) & (rh < h.result) & (rw < w.result)


@triton.jit
def readable(
    td, th, tw, need, inside, sd, sh, sw, d, h, w, MASK: tl.constexpr,
):  # fmt: skip
    """(taps, positions): which taps of which positions read inside the source.

    MASK: 1 by the bits that a tap needs and a position has, 2 by comparing.
    """
    if MASK == 1:
        mask = (inside[None, :] & need[:, None]) == need[:, None]
    else:
        at_d = sd[None, :] + (td * d.reach)[:, None]
        at_h = sh[None, :] + (th * h.reach)[:, None]
        at_w = sw[None, :] + (tw * w.reach)[:, None]
        mask = (at_d >= 0) & (at_d < d.source) & (at_h >= 0) & (at_h < h.source) & (at_w >= 0) & (at_w < w.source)
    return mask


@triton.jit
def offset(n, c, d, h, w, s, zero, CONTIGUOUS: tl.constexpr):
    """Distance in memory of elements of a 5-D tensor with strides s, in 64 bits.

    zero: an argument that is 0, of which the compiler knows nothing. Then it loads element by element whatever it is
    told of neighbours; CONTIGUOUS of them have it put threads along the axis of these offsets.
    """
    at = n.to(tl.int64) * s.n + c * s.c + d.to(tl.int64) * s.d + h.to(tl.int64) * s.h + w.to(tl.int64) * s.w + zero
    return tl.max_contiguous(at, [CONTIGUOUS])


@triton.jit
def taps_of(k, d, h, w, s, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, FAR: tl.constexpr):
    """k = (channel, tap) of the pass -> tap by axis, and its distance in memory from tap 0 of channel 0.

    FAR: that passes 32 bits.
    """
    tw = k % TW
    th = k // TW % TH
    td = k // (TW * TH) % TD
    c = k // (TW * TH * TD)
    if FAR:
        return td, th, tw, c.to(tl.int64) * s.c + td * d.reach * s.d + th * h.reach * s.h + tw * w.reach * s.w
    return td, th, tw, c * s.c + td * (d.reach * s.d) + th * (h.reach * s.h) + tw * (w.reach * s.w)


@triton.jit
def need_bits(td, th, tw, TH: tl.constexpr, TW: tl.constexpr):
    """The bits of `inside_bits` that a position must have for its tap to read inside the source."""
    return (1 << tw) | (1 << (TW + th)) | (1 << (TW + TH + td))


@triton.jit
def before(tap, axis, phase, TAPS: tl.constexpr):
    """How many of the phase's taps come before `tap` of all, and whether that is one of the phase's."""
    past = tap - (axis.first + phase)
    count = tl.minimum(tl.maximum((past + axis.every - 1) // axis.every, 0), TAPS)
    return count, ((past >= 0) & (past % axis.every == 0)).to(tl.int32)


@triton.jit
def border(
    k, phase_d, phase_h, phase_w, d, h, w, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """How many k of the phase come before place k among all."""
    if WHOLE:
        return k
    all_taps = d.kernel * h.kernel * w.kernel
    tap = k % all_taps
    less_d, is_d = before(tap // (h.kernel * w.kernel), d, phase_d, TD)
    less_h, is_h = before(tap // w.kernel % h.kernel, h, phase_h, TH)
    less_w, is_w = before(tap % w.kernel, w, phase_w, TW)
    return k // all_taps * (TD * TH * TW) + less_d * (TH * TW) + is_d * (less_h * TW + is_h * less_w)
