"""Pooling of x (N, C, D, H, W), SPEC.md, section of this name: max, average, power average, fractional, unpooling."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from reference import formats, power
from reference.sum import tree

Triple = tuple[int, int, int]


class Windows(NamedTuple):
    """Of one size; or, with `output`, as many adaptive ones, and the rest is not used."""

    kernel: Triple = (1, 1, 1)
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    ceil: bool = False
    output: Triple | None = None


class Axis(NamedTuple):
    """The windows of one axis: the places of each one's taps (outside of the input too), how many taps there are, and
    how many positions of each window are in the padded input and in the input."""

    places: list[list[int]]
    taps: int
    padded: list[int]
    inside: list[int]


def axes(size: tuple[int, ...], w: Windows) -> list[Axis]:
    """Of the three axes of an input of this size."""
    if w.output is not None:
        return [_adaptive(n, o) for n, o in zip(size, w.output, strict=True)]
    each = zip(size, w.kernel, w.stride, w.padding, w.dilation, strict=True)
    return [_regular(*axis, w.ceil) for axis in each]


def _regular(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> Axis:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1
    firsts = [o * stride - padding for o in range(count)]
    places = [[f + t * dilation for t in range(kernel)] for f in firsts]
    padded = [len(range(f, min(f + kernel, size + padding))) for f in firsts]
    return Axis(places, kernel, padded, [len([p for p in window if 0 <= p < size]) for window in places])


def _adaptive(size: int, output: int) -> Axis:
    places = [list(range(o * size // output, -(-(o + 1) * size // output))) for o in range(output)]
    counts = [len(window) for window in places]
    return Axis(places, max(counts, default=1), counts, counts)


Tap = tuple[int, int, int, int]


def _windows(size: tuple[int, ...], along: list[Axis]) -> Iterator[tuple[Triple, list[Tap]]]:
    """Every output position in row-major order, with (place among the kernel's taps, position) of the taps inside."""
    for index in np.ndindex(*(len(axis.places) for axis in along)):
        own = [
            [(t, p) for t, p in enumerate(axis.places[o]) if 0 <= p < n]
            for axis, o, n in zip(along, index, size, strict=True)
        ]
        taps = [
            ((a * along[1].taps + b) * along[2].taps + c, d, h, w)
            for a, d in own[0]
            for b, h in own[1]
            for c, w in own[2]
        ]
        yield index, taps


def max_pool(x: np.ndarray, w: Windows) -> tuple[np.ndarray, np.ndarray]:
    """The largest elements and their places in the plane."""
    along = axes(x.shape[2:], w)
    return _largest(x, [len(axis.places) for axis in along], list(_windows(x.shape[2:], along)))


def _largest(
    x: np.ndarray, output: list[int], windows: list[tuple[Triple, list[Tap]]]
) -> tuple[np.ndarray, np.ndarray]:
    shape = (*x.shape[:2], *output)
    values, indices = np.full(shape, -np.inf, x.dtype), np.full(shape, -1, np.int64)
    for index, taps in windows:
        at = (slice(None), slice(None), *index)
        for _, d, h, v in taps:
            element = x[:, :, d, h, v]
            best = values[at]
            take = (element > best) | np.isnan(element) | (indices[at] < 0)
            values[at] = np.where(take, element, best)
            place = (d * x.shape[3] + h) * x.shape[4] + v
            indices[at] = np.where(take, place, indices[at])
    return values, indices


def max_pool_gradient(grad: np.ndarray, x: np.ndarray, w: Windows, dtype: str) -> np.ndarray:
    _, indices = max_pool(x, w)
    flat = np.zeros((*x.shape[:2], int(np.prod(x.shape[2:]))), x.dtype)
    with np.errstate(all="ignore"):
        for n, c, *output in np.ndindex(*grad.shape):
            place = indices[(n, c, *output)]
            if place >= 0:
                flat[n, c, place] += grad[(n, c, *output)]
    return formats.rounded(flat.reshape(x.shape), dtype)


def _divisors(along: list[Axis], inside: bool, divisor: int) -> np.ndarray:
    counts = [np.array(axis.inside if inside else axis.padded) for axis in along]
    product = counts[0][:, None, None] * counts[1][:, None] * counts[2]
    return np.full_like(product, divisor) if divisor else product


def avg_pool(x: np.ndarray, w: Windows, dtype: str, inside: bool = False, divisor: int = 0) -> np.ndarray:
    """inside: only positions of the input are counted; divisor: instead of any count, unless it is 0."""
    along = axes(x.shape[2:], w)
    x = np.asarray(x, formats.compute_type(dtype))
    by = _divisors(along, inside, divisor)
    out = np.empty((*x.shape[:2], *by.shape), x.dtype)
    for index, taps in _windows(x.shape[2:], along):
        terms = np.full((along[0].taps * along[1].taps * along[2].taps, *x.shape[:2]), -0.0, x.dtype)
        for place, d, h, v in taps:
            terms[place] = x[:, :, d, h, v]
        with np.errstate(all="ignore"):
            out[(slice(None), slice(None), *index)] = tree(terms) / x.dtype.type(by[index])
    return formats.rounded(out, dtype)


def avg_pool_gradient(
    grad: np.ndarray, size: tuple[int, ...], w: Windows, dtype: str, inside: bool = False, divisor: int = 0
) -> np.ndarray:
    """size: (N, C, D, H, W) of the input."""
    along = axes(size[2:], w)
    by = _divisors(along, inside, divisor)
    total: np.ndarray = np.zeros(size, formats.compute_type(dtype))
    for index, taps in _windows(size[2:], along):
        with np.errstate(all="ignore"):
            share = grad[(slice(None), slice(None), *index)] / total.dtype.type(by[index])
            for _, d, h, v in taps:
                total[:, :, d, h, v] += share
    return formats.rounded(total, dtype)


def lp_pool(x: np.ndarray, p: float, w: Windows, dtype: str) -> np.ndarray:
    mean = avg_pool(power.forward(x, np.full_like(x, p)), w, "float32")
    with np.errstate(all="ignore"):
        total = mean * np.float32(np.prod(w.kernel))
        y = power.forward(total, np.full_like(total, 1 / p))
    zero = np.float32(0 if p > 0 else np.inf)
    return formats.rounded(np.where(mean == 0, zero, y), dtype)


def max_unpool(x: np.ndarray, indices: np.ndarray, places: int) -> np.ndarray:
    """x, indices (N, C, ...) -> (N, C, places)."""
    out = np.zeros((*x.shape[:2], places), x.dtype)
    for at in np.ndindex(*x.shape):
        out[(*at[:2], indices[at])] = x[at]
    return out


def fractional_max_pool(
    x: np.ndarray, samples: np.ndarray, kernel: tuple[int, ...], output: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """x (N, C, H, W) or (N, C, D, H, W), samples (N, C, axes): the largest elements and their places in the plane."""
    dims = x.ndim - 2
    order = (1, 0) if dims == 2 else (0, 1, 2)
    values, indices = np.empty((*x.shape[:2], *output), x.dtype), np.empty((*x.shape[:2], *output), np.int64)
    missing = 3 - dims
    for n, c in np.ndindex(*x.shape[:2]):
        along = [Axis([[0]], 1, [1], [1])] * missing
        for axis in range(dims):
            firsts = _starts(samples[n, c, order[axis]], x.shape[2 + axis], kernel[axis], output[axis])
            places = [[f + t for t in range(kernel[axis])] for f in firsts]
            along = [*along, Axis(places, kernel[axis], [], [])]
        plane = x[n : n + 1, c : c + 1].reshape(1, 1, *[1] * missing, *x.shape[2:])
        found = _largest(plane, [len(a.places) for a in along], list(_windows(plane.shape[2:], along)))
        values[n, c], indices[n, c] = (v.reshape(output) for v in found)
    return values, indices


def _starts(u: np.floating, size: int, kernel: int, output: int) -> list[int]:
    if output == 1:
        return [size - kernel]
    wide = u.dtype.type
    apart = wide(size - kernel) / wide(output - 1)
    return [int((wide(i) + u) * apart) - int(u * apart) for i in range(output - 1)] + [size - kernel]


def lp_pool_gradient(grad: np.ndarray, x: np.ndarray, p: float, w: Windows, dtype: str) -> np.ndarray:
    """The gradients of pow, of the product, of the mean and of pow, one after another."""
    mean = avg_pool(power.forward(x, np.full_like(x, p)), w, "float32")
    taps = np.float32(np.prod(w.kernel))
    one = np.where(mean == 0, np.float32(1), mean)
    with np.errstate(all="ignore"):
        of_total = power.gradients(np.where(mean == 0, np.float32(0), grad), one * taps, np.full_like(mean, 1 / p))[0]
        of_mean = np.where(mean == 0, np.float32(0), of_total * taps)
        of_powers = avg_pool_gradient(of_mean, x.shape, w, "float32")
        return formats.rounded(power.gradients(of_powers, x, np.full_like(x, p))[0], dtype)
