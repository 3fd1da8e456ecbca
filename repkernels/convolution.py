"""The shape of a convolution, in three spatial axes whatever the public operation has."""

from typing import NamedTuple

Triple = tuple[int, int, int]


class Convolution(NamedTuple):
    """Output position o and tap t of an axis meet at input position o * stride + t * dilation - padding.

    Positions outside 0 .. size - 1 are zero padding; `output` alone decides how far it reaches past the end.
    Fewer than three axes are the last ones; the others have size, kernel, stride and output 1, and no padding.
    """

    size: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    output: Triple
    groups: int

    @property
    def pointwise(self) -> bool:
        """Whether an output sees one pixel, so that `fixed` scales pixels (SPEC.md, "Convolutions")."""
        return self.kernel == (1, 1, 1) and self.padding == (0, 0, 0)
