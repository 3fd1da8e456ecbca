"""The windows of a pooling operation, in three spatial axes whatever the public operation has."""

import math
from typing import NamedTuple

Triple = tuple[int, int, int]


class Windows(NamedTuple):
    """Tap t of output position o of an axis is at input position o * stride - padding + t * dilation.

    adaptive: at floor(o * size / output) + t, below ceil((o + 1) * size / output); stride, padding and dilation are
    1, 0 and 1, and kernel is the largest window. Positions outside 0 .. size - 1 are no taps. Fewer than three axes are
    the last ones; the others have size, kernel, stride and output 1.
    """

    size: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    output: Triple
    adaptive: bool

    @property
    def taps(self) -> int:
        """How many taps a window has, with those outside of the input."""
        return math.prod(self.kernel)

    @property
    def whole(self) -> bool:
        """Whether there is one window and it is the input."""
        return self.output == (1, 1, 1) and self.kernel == self.size and self.padding == (0, 0, 0)

    @property
    def full(self) -> bool:
        """Whether no window has a tap outside of the input."""
        axes = zip(self.size, self.kernel, self.stride, self.dilation, self.output, strict=True)
        reach = all((o - 1) * s + (k - 1) * d < size for size, k, s, d, o in axes)
        return not self.adaptive and self.padding == (0, 0, 0) and reach

    @property
    def around(self) -> Triple:
        """The most windows that have one position, along each axis."""
        if self.adaptive:
            a, b, c = (largest(o, s) for o, s in zip(self.output, self.size, strict=True))
        else:
            axes = zip(self.kernel, self.stride, self.dilation, strict=True)
            a, b, c = ((k - 1) * d // s + 1 for k, s, d in axes)
        return a, b, c

    def flat(self) -> list[int]:
        """As a custom op takes it."""
        return [*(n for triple in self[:6] for n in triple), int(self.adaptive)]


def windows(flat: list[int]) -> Windows:
    """The inverse of `Windows.flat`."""
    size, kernel, stride, padding, dilation, output = ((flat[i], flat[i + 1], flat[i + 2]) for i in range(0, 18, 3))
    return Windows(size, kernel, stride, padding, dilation, output, bool(flat[18]))


def largest(size: int, output: int) -> int:
    """The most positions that an adaptive window has: of ceil((o + 1) size / output) - floor(o size / output), all o.

    Windows begin size / output apart. Where that is no integer, its fraction in lowest terms decides whether one
    reaches into a position more at both of its ends.
    """
    if output == 0:
        return 1
    rest = size % output
    if rest == 0:
        return size // output
    return size // output + (1 if output % rest == 0 else 2)


def adaptive(size: Triple, output: Triple) -> Windows:
    """The windows of adaptive pooling; of one size where output divides size."""
    ones, zeros = (1, 1, 1), (0, 0, 0)
    a, b, c = (largest(s, o) for s, o in zip(size, output, strict=True))
    if all(o and s % o == 0 for s, o in zip(size, output, strict=True)):
        return Windows(size, (a, b, c), (a, b, c), zeros, ones, output, False)
    return Windows(size, (a, b, c), ones, zeros, ones, output, True)
