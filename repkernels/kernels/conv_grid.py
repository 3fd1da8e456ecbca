"""The positions of a convolution on one line, so that a tap is a step along it and an implicit product needs no gather.

Along an axis of stride s, input position i is element i // s of phase i % s, and output o meets tap t at element
o + shift of one phase. Outputs and phases are laid on a common pitch, long enough that a shifted output that leaves
its row lands on zeros. In three axes a tap is then one phase and one step, and an input gradient is the same steps
backwards.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from repkernels.convolution import Convolution, Triple


class Tap(NamedTuple):
    """Where output position 0 meets a tap, in a phase and on the line; number: its place in the weight."""

    phase: int
    shift: int
    number: int


class Grid(NamedTuple):
    """pitch: of each axis. phases: (d, h, w) of each phase that a tap reads, in order. taps: row-major.

    spread: the taps of so many last axes are channels of a phase, (taps, channel), at output positions along these.
    """

    pitch: Triple
    phases: tuple[Triple, ...]
    taps: tuple[Tap, ...]
    spread: int

    @property
    def positions(self) -> int:
        """Positions of a sample."""
        return math.prod(self.pitch)

    def at_outputs(self) -> "Grid":
        """The grid as output positions lie on it: one phase, nothing spread."""
        return self._replace(phases=((0, 0, 0),), spread=0)


@functools.lru_cache(1024)
def grid_of(c: Convolution, spread: int, multiple: int = 1) -> Grid:
    """The grid of a convolution. spread: as `Grid` has it. multiple: the shift of every tap is one of it."""
    axes = [_axis(*values) for values in zip(c.size, c.kernel, c.stride, c.padding, c.dilation, c.output, strict=True)]
    for i in range(3 - spread, 3):
        axes[i] = _Axis(c.output[i], ((0, 0),))
    if any(shift for axis in axes for _, shift in axis.taps):
        axes[2] = axes[2]._replace(pitch=-(-axes[2].pitch // multiple) * multiple)
    pitch = (axes[0].pitch, axes[1].pitch, axes[2].pitch)
    met: list[tuple[Triple, int]] = [
        ((at[0][0], at[1][0], at[2][0]), (at[0][1] * pitch[1] + at[1][1]) * pitch[2] + at[2][1])
        for at in ((d, h, w) for d in axes[0].taps for h in axes[1].taps for w in axes[2].taps)
    ]
    phases = tuple(sorted({phase for phase, _ in met}))
    taps = tuple(Tap(phases.index(phase), shift, number) for number, (phase, shift) in enumerate(met))
    return Grid(pitch, phases, taps, spread)


class _Axis(NamedTuple):
    pitch: int
    taps: tuple[tuple[int, int], ...]  # (phase, shift)


def _axis(size: int, kernel: int, stride: int, padding: int, dilation: int, output: int) -> _Axis:
    taps = tuple(((t * dilation - padding) % stride, (t * dilation - padding) // stride) for t in range(kernel))
    longest = -(-size // stride)
    before = max(0, *(-shift for _, shift in taps))
    after = max(0, *(shift for _, shift in taps))
    return _Axis(max(longest + before, output + after), taps)


class Backwards(NamedTuple):
    """What input positions of one phase meet: the taps of the gradient's grid that reach them, and their slices."""

    phase: Triple
    taps: tuple[Tap, ...]


@functools.lru_cache(1024)
def backwards(c: Convolution) -> tuple[Backwards, ...]:
    """For each phase of the input the taps that bring a gradient to it, in ascending order; none for some."""
    grid = grid_of(c, 0)
    by_phase: dict[Triple, list[Tap]] = {}
    for tap in grid.taps:
        by_phase.setdefault(grid.phases[tap.phase], []).append(Tap(0, -tap.shift, tap.number))
    everything = ((d, h, w) for d in range(c.stride[0]) for h in range(c.stride[1]) for w in range(c.stride[2]))
    return tuple(Backwards(phase, tuple(by_phase.get(phase, ()))) for phase in everything)


# Nothing leaves it: a CUDA graph reads a table where it lies.
@functools.cache
def steps(taps: tuple[Tap, ...], plane: int, on: torch.device) -> Tensor:
    """(2, taps) int32: where each tap's positions begin on the line of all phases, `plane` of each; its number."""
    return _int32([[tap.phase * plane + tap.shift for tap in taps], [tap.number for tap in taps]], on)


@functools.cache
def shifts(taps: tuple[Tap, ...], on: torch.device) -> Tensor:
    """(2, taps) int32: each tap's shift, and its phase."""
    return _int32([[tap.shift for tap in taps], [tap.phase for tap in taps]], on)


@functools.cache
def origins(phases: tuple[Triple, ...], on: torch.device) -> Tensor:
    """(phases, 3) int32."""
    return _int32([list(phase) for phase in phases], on)


def _int32(values: list[list[int]], on: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=on)
