"""Convolutions and their gradients under every contract, straight from SPEC.md, "Convolutions".

Arrays of values (formats.py): x (N, C, *size), weight (O, C / groups, *kernel), results and their gradients
(N, O, *output), with any number of spatial axes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from reference import formats, matmul
from reference.sum import sum_rows

Padding = str | int | Sequence[int]


class Geometry(NamedTuple):
    """Output position o and tap t meet at input position o * stride + t * dilation - padding, on each axis."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output: tuple[int, ...]
    groups: int

    @property
    def pointwise(self) -> bool:
        """Whether `fixed` scales pixels."""
        return all(k == 1 for k in self.kernel) and not any(self.padding)


def geometry(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Geometry:
    """The geometry of a convolution by torch's arguments."""
    axes = len(size)
    stride, dilation = _each(stride, axes), _each(dilation, axes)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if isinstance(padding, str):
        # An odd number of zeros has one more at the end.
        total = reach if padding == "same" else [0] * axes
        before = tuple(t // 2 for t in total)
    else:
        before = _each(padding, axes)
        total = [2 * p for p in before]
    output = tuple((n + p - r - 1) // s + 1 for n, p, r, s in zip(size, total, reach, stride, strict=True))
    return Geometry(tuple(size), tuple(kernel), stride, before, dilation, output, groups)


def transposed_geometry(
    output: Sequence[int],
    kernel: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Geometry:
    """The geometry of the convolution whose input gradient a transposed convolution is: its input has size `output`."""
    axes = len(output)
    stride, padding, extra, dilation = (_each(v, axes) for v in (stride, padding, output_padding, dilation))
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, k, s, p, e, d in zip(output, kernel, stride, padding, extra, dilation, strict=True)
    )
    return Geometry(size, tuple(kernel), stride, padding, dilation, tuple(output), groups)


class Meetings(NamedTuple):
    """For every tap and place: which position of an array meets it there, and whether any does; (taps, places), int64
    and bool.
    """

    position: np.ndarray
    met: np.ndarray

    def rows(self, v: np.ndarray) -> np.ndarray:
        """v (N, c, *positions) -> (N * places, c * taps), 0 where nothing meets."""
        flat = v.reshape(*v.shape[:2], math.prod(v.shape[2:]))
        ended = np.concatenate([flat, np.zeros((*v.shape[:2], 1), v.dtype)], axis=-1)
        gathered = ended[..., np.where(self.met, self.position, flat.shape[-1])]
        taps, places = self.position.shape
        return gathered.transpose(0, 3, 1, 2).reshape(len(v) * places, v.shape[1] * taps)


def forward(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, g: Geometry, dtype: str, contract: str
) -> np.ndarray:
    """The convolution, k = (c, taps) of the group; padding is an operand +0."""
    meetings, out = _read(g), []
    for xs, ws in _groups((x, 1), (weight, 0), g, dtype):
        columns = ws.reshape(len(ws), -1).T
        r = _contracted(xs, columns, meetings, g.pointwise, _depthwise(weight, g, contract), padding=True)
        out.append(r.reshape(len(x), *g.output, len(ws)))
    return _stored(out, bias, dtype)


def input_gradient(
    grad: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, g: Geometry, dtype: str, contract: str
) -> np.ndarray:
    """The gradient of x, k = (o, taps) of the group; a tap that meets no output takes no part.

    With a bias (C,): the transposed convolution of `grad`.
    """
    meetings, out = _met(g), []
    for gs, ws in _groups((grad, 1), (weight, 0), g, dtype):
        columns = np.moveaxis(ws, 1, -1).reshape(-1, ws.shape[1])
        r = _contracted(gs, columns, meetings, g.pointwise, _depthwise(weight, g, contract), padding=False)
        out.append(r.reshape(len(grad), *g.size, ws.shape[1]))
    return _stored(out, bias, dtype)


def weight_gradient(grad: np.ndarray, x: np.ndarray, g: Geometry, dtype: str, contract: str) -> np.ndarray:
    """The gradient of the weight, k = (n, output position); padding is an operand +0."""
    meetings, out = _read(g), []
    for gs, xs in _groups((grad, 1), (x, 1), g, dtype):
        samples, channels = xs.shape[:2]
        a = gs.swapaxes(0, 1).reshape(gs.shape[1], samples * math.prod(g.output))
        b = meetings.rows(xs)
        if contract == "ordered":
            r = matmul.chain(a, b)
        else:
            digits = matmul.DIGITS[contract]
            exponent, q = matmul.quantize(xs.swapaxes(0, 1).reshape(channels, samples * math.prod(g.size)), digits)
            q = q.reshape(channels, samples, *g.size).swapaxes(0, 1)
            right = np.repeat(exponent, math.prod(g.kernel)), meetings.rows(q).T
            r = matmul.fixed_scaled(a, b, matmul.quantize(a, digits), right, digits)
        out.append(r.reshape(gs.shape[1], channels, *g.kernel))
    return matmul.stored(np.concatenate(out), None, dtype)


def bias_gradient(grad: np.ndarray, dtype: str) -> np.ndarray:
    """SUM of each channel of grad (N, O, *output), row-major, sample outermost."""
    return sum_rows(np.moveaxis(grad, 1, -1).reshape(-1, grad.shape[1]), dtype)


def _contracted(
    v: np.ndarray, columns: np.ndarray, meetings: Meetings, pixels: bool, contract: str, padding: bool
) -> np.ndarray:
    """The contractions (N * places, columns) of what meets each place with each column.

    padding: what meets nothing is an operand +0; otherwise it takes no part.
    """
    a = meetings.rows(v)
    part = None if padding else meetings.rows(np.ones(v.shape, bool))
    if contract == "ordered":
        return matmul.chain(a, columns, part)
    digits = matmul.DIGITS[contract]
    samples, channels, positions = *v.shape[:2], v.shape[2:]
    if pixels:
        exponent, q = matmul.quantize(np.moveaxis(v, 1, -1).reshape(-1, channels), digits)
        exponents = meetings.rows(exponent.reshape(samples, 1, *positions))[:, 0]
        q = np.moveaxis(q.reshape(samples, *positions, channels), -1, 1)
    else:
        exponent, q = matmul.quantize(v.reshape(samples, channels * math.prod(positions)), digits)
        exponents = np.repeat(exponent, meetings.position.shape[1])
    left = exponents, meetings.rows(q.reshape(v.shape))
    return matmul.fixed_scaled(a, columns, left, matmul.quantize(columns.T, digits), digits, part)


def _read(g: Geometry) -> Meetings:
    """The input position that each output position reads by each tap."""

    def axis(n: int, k: int, s: int, p: int, d: int, m: int) -> tuple[np.ndarray, np.ndarray]:
        position = np.arange(m) * s + np.arange(k)[:, None] * d - p
        return position, (position >= 0) & (position < n)

    return _joined(g, axis, g.size)


def _met(g: Geometry) -> Meetings:
    """The output position that reads each input position by each tap."""

    def axis(n: int, k: int, s: int, p: int, d: int, m: int) -> tuple[np.ndarray, np.ndarray]:
        distance = np.arange(n) + p - np.arange(k)[:, None] * d
        position = distance // s
        return position, (distance % s == 0) & (position >= 0) & (position < m)

    return _joined(g, axis, g.output)


def _joined(g: Geometry, axis: Callable[..., tuple[np.ndarray, np.ndarray]], sizes: tuple[int, ...]) -> Meetings:
    """Axes joined row-major; `axis` gives (taps, places) of one, positions in it, and which exist."""
    position, met = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for n, *arguments in zip(sizes, g.size, g.kernel, g.stride, g.padding, g.dilation, g.output, strict=True):
        where, exists = axis(*arguments)
        shape = len(position) * len(where), position.shape[1] * where.shape[1]
        position = (position[:, None, :, None] * n + where[None, :, None, :]).reshape(shape)
        met = (met[:, None, :, None] & exists[None, :, None, :]).reshape(shape)
    return Meetings(position, met)


def _groups(
    left: tuple[np.ndarray, int], right: tuple[np.ndarray, int], g: Geometry, dtype: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each group's parts of two arrays, split along the given axes, in the format that computes."""
    compute = formats.compute_type(dtype)
    (a, axis_a), (b, axis_b) = left, right
    parts: list[np.ndarray] = np.split(np.asarray(a, compute), g.groups, axis_a)
    return zip(parts, np.split(np.asarray(b, compute), g.groups, axis_b), strict=True)


def _depthwise(weight: np.ndarray, g: Geometry, contract: str) -> str:
    """The contract of results and input gradients: `ordered` where a group has one input channel, unless it is all."""
    return "ordered" if weight.shape[1] == 1 and g.groups > 1 else contract


def _stored(groups: list[np.ndarray], bias: np.ndarray | None, dtype: str) -> np.ndarray:
    """Groups of channels (N, *positions, c), the bias added, as one result (N, C, *positions)."""
    return np.moveaxis(matmul.stored(np.concatenate(groups, axis=-1), bias, dtype), -1, 1)


def _each(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value)
