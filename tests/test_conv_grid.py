"""The line of positions of a convolution: every output meets by every tap what the geometry says, or zeros."""

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from repkernels.convolution import Convolution
from repkernels.kernels.conv_grid import backwards, grid_of

SAMPLES, ROWS = 2, 3


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.integers(0, 1),
    st.sampled_from([1, 16]),
)  # fmt: skip
@example(size=7, kernel=1, stride=2, padding=1, dilation=1, more=0, multiple=1)
def test_line(size: int, kernel: int, stride: int, padding: int, dilation: int, more: int, multiple: int) -> None:
    output = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    assume(output > 0)
    output += more
    c = Convolution(
        (1, ROWS, size), (1, 1, kernel), (1, 1, stride), (0, 0, padding), (1, 1, dilation), (1, ROWS, output), 1
    )
    grid = grid_of(c, 0, multiple)
    x = np.arange(1, SAMPLES * ROWS * size + 1).reshape(SAMPLES, ROWS, size)
    lines = np.zeros((len(grid.phases), SAMPLES, *grid.pitch), np.int64)
    for number, (_, _, phase) in enumerate(grid.phases):
        part = x[:, :, phase::stride]
        lines[number, :, 0, :ROWS, : part.shape[2]] = part
    line, plane = lines.reshape(-1), SAMPLES * grid.positions
    for n, row, o in np.ndindex(SAMPLES, ROWS, output):
        for tap in grid.taps:
            i = o * stride + tap.number * dilation - padding
            at = tap.phase * plane + n * grid.positions + row * grid.pitch[2] + o + tap.shift
            assert (line[at] if 0 <= at < len(line) else 0) == (x[n, row, i] if 0 <= i < size else 0)
    # Backwards the same pairs meet: each tap once, of the phase that it reads.
    met = sorted(tap.number for phase in backwards(c) for tap in phase.taps)
    assert met == list(range(kernel))
