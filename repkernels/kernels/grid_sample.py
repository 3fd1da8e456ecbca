"""grid_sample on a GPU (SPEC.md, "grid_sample"): each position's taps once, then channels that gather by them."""

import triton
import triton.language as tl
from torch import Tensor, float64

from repkernels.kernels.functions import minus_zero
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv

SIZE = 128
# Channels that a program computes for its positions.
CHANNELS = 16


@triton.jit
def floor(u, WIDE: tl.constexpr):
    """floor of |u| < 2^31 as int32: by conversion, since the instruction flushes subnormals."""
    i = u.to(tl.int32)
    return i - (i.to(WIDE) > u).to(tl.int32)


@triton.jit
def reflected(u, n, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """(u reflected at the borders, the sign of its slope)."""
    low = 0.0 if ALIGN else 0.5
    span = ((n - 1) if ALIGN else n).to(tl.float64)
    d = u.to(tl.float64) + low
    sign = tl.where(d < 0.0, -1, 1)
    d = tl.abs(d)
    flips = (d / tl.where(span == 0.0, 1.0, span)).to(tl.int64)
    rest = tl.fma(flips.to(tl.float64) * -1.0, span, d)
    odd = flips % 2 == 1
    at = tl.where(odd, span - rest, rest) - low
    at = tl.where(span == 0.0, 0.0, at).to(WIDE)
    return at, tl.where(span == 0.0, 0, tl.where(odd, sign * -1, sign))


@triton.jit
def place(g, n, ALIGN: tl.constexpr, PADDING: tl.constexpr, CUBIC: tl.constexpr, WIDE: tl.constexpr):
    """(u, slope): the coordinate that grid value g stands for along an axis of n, and du/dg."""
    size = n.to(WIDE)
    if ALIGN:
        u = (g + 1.0) * 0.5 * (size - 1.0)
        slope = (size - 1.0) * 0.5
    else:
        u = ((g + 1.0) * size - 1.0) * 0.5
        slope = size * 0.5
    slope = tl.broadcast_to(slope, u.shape)
    if PADDING == "reflection" and not CUBIC:
        u = tl.where(tl.abs(u) < 1073741824.0, u, -100.0)
        u, sign = reflected(u, n, ALIGN, WIDE)
        slope = slope * sign.to(WIDE)
    if PADDING != "zeros" and not CUBIC:
        slope = tl.where((u > 0.0) & (u < size - 1.0), slope, 0.0)
        u = tl.where(u > 0.0, u, 0.0)
        u = tl.where(u < size - 1.0, u, size - 1.0)
    return tl.where(tl.abs(u) < 1073741824.0, u, -100.0).to(WIDE), slope


@triton.jit
def near(x):
    return (x * 1.25 - 2.25) * x * x + 1.0


@triton.jit
def far(x):
    return ((x * -0.75 + 3.75) * x - 6.0) * x + 3.0


@triton.jit
def near_slope(x):
    return (x * 3.75 - 4.5) * x


@triton.jit
def far_slope(x):
    return (x * -2.25 + 7.5) * x - 6.0


@triton.jit
def tap(u, n, k: tl.constexpr, MODE: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """(position, whether it is inside, weight, slope) of tap k along one axis."""
    i = floor(u, WIDE)
    p = u - i.to(WIDE)
    if MODE == 1:
        i += ((p > 0.5) | ((p == 0.5) & (i % 2 != 0))).to(tl.int32)
        weight = tl.full(u.shape, 1.0, WIDE)
        slope = tl.full(u.shape, 0.0, WIDE)
    elif MODE == 2:
        weight = ((i + 1).to(WIDE) - u) if k == 0 else p
        slope = tl.full(u.shape, -1.0 if k == 0 else 1.0, WIDE)
        i += k
    else:
        q = p * -1.0 + 1.0
        if k == 0:
            weight = far(p + 1.0)
            slope = far_slope(p + 1.0)
        elif k == 1:
            weight = near(p)
            slope = near_slope(p)
        elif k == 2:
            weight = near(q)
            slope = near_slope(q) * -1.0
        else:
            weight = far(q + 1.0)
            slope = far_slope(q + 1.0) * -1.0
        i += k - 1
        if PADDING == "border":
            i = tl.minimum(tl.maximum(i, 0), n - 1)
        if PADDING == "reflection":
            period = tl.maximum(2 * (n - 1), 1) if ALIGN else 2 * n
            i = i % period
            i = tl.where(i < 0, i + period, i)
            i = tl.where(i >= n, (period if ALIGN else period - 1) - i, i)
    return i, (i >= 0) & (i < n), weight, slope


@triton.jit(do_not_specialize=["n0", "n1", "n2"])
def grid_taps_kernel(
    grid, index, weight, slopes, factors, total, n0, n1, n2, MODE: tl.constexpr, PADDING: tl.constexpr,
    ALIGN: tl.constexpr, AXES: tl.constexpr, GRADIENT: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Taps of SIZE positions; n0, n1, n2: the sizes of x's axes, n0 = 1 with two. Slopes: as grid's last axis."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = e < total
    x, slope_x = place(tl.load(grid + e * AXES, mask=mask, other=0.0).to(WIDE), n2, ALIGN, PADDING, MODE == 4, WIDE)
    y, slope_y = place(tl.load(grid + e * AXES + 1, mask=mask, other=0.0).to(WIDE), n1, ALIGN, PADDING, MODE == 4, WIDE)
    if AXES == 3:
        z = tl.load(grid + e * AXES + 2, mask=mask, other=0.0).to(WIDE)
        z, slope_z = place(z, n0, ALIGN, PADDING, False, WIDE)
    if GRADIENT:
        tl.store(factors + e * AXES, slope_x, mask=mask)
        tl.store(factors + e * AXES + 1, slope_y, mask=mask)
        if AXES == 3:
            tl.store(factors + e * AXES + 2, slope_z, mask=mask)
    for a in tl.static_range(MODE if AXES == 3 else 1):
        for b in tl.static_range(MODE):
            for c in tl.static_range(MODE):
                at = e * (MODE * MODE * MODE if AXES == 3 else MODE * MODE) + (a * MODE + b) * MODE + c
                i, inside, w, d_x = tap(x, n2, c, MODE, PADDING, ALIGN, WIDE)
                j, inside_y, w_y, d_y = tap(y, n1, b, MODE, PADDING, ALIGN, WIDE)
                i += j * n2
                inside &= inside_y
                d_x = d_x * w_y
                d_y = w * d_y
                w = w * w_y
                if AXES == 3:
                    k, inside_z, w_z, d_z = tap(z, n0, a, MODE, PADDING, ALIGN, WIDE)
                    i += k * n1 * n2
                    inside &= inside_z
                    d_x = d_x * w_z
                    d_y = d_y * w_z
                    d_z = w * d_z
                    w = w * w_z
                tl.store(index + at, tl.where(inside, i, -1), mask=mask)
                tl.store(weight + at, w, mask=mask)
                if GRADIENT:
                    tl.store(slopes + at * AXES, d_x, mask=mask)
                    tl.store(slopes + at * AXES + 1, d_y, mask=mask)
                    if AXES == 3:
                        tl.store(slopes + at * AXES + 2, d_z, mask=mask)


def taps(
    grid: Tensor, index: Tensor, weight: Tensor, slopes: Tensor | None, factors: Tensor | None, sizes: tuple[int, ...],
    mode: int, padding: str, align: bool,
) -> None:  # fmt: skip
    """The taps of each position of grid (M, A), contiguous: index (M, T) int32 into x's places or -1, weight (M, T).

    T = mode^A, the first axis of x outermost. slopes (M, T, A): each weight's derivatives by the coordinates; factors
    (M, A): the coordinates' by the grid. All but index in the format of computation.
    """
    axes = grid.shape[1]
    n = (1, *sizes) if axes == 2 else sizes
    launch(
        grid_taps_kernel, (cdiv(grid.shape[0], SIZE),), grid, index, weight,
        weight if slopes is None else slopes, weight if factors is None else factors, grid.shape[0], *n, MODE=mode,
        PADDING=padding, ALIGN=align, AXES=axes, GRADIENT=slopes is not None, SIZE=SIZE, WIDE=_wide(grid),
    )  # fmt: skip


@triton.jit(do_not_specialize=["taps"])
def gather_kernel(
    x, index, weight, out, taps, P, C, x_n, x_c, x_s, out_n, out_c, out_p, CHANNELS: tl.constexpr, SIZE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """SIZE positions of one sample for CHANNELS channels."""
    blocks = tl.cdiv(P, SIZE)
    n = (tl.program_id(0) // blocks).to(tl.int64)
    p = (tl.program_id(0) % blocks).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = p < P
    first = tl.program_id(1) * CHANNELS
    at = (n * P + p) * taps
    for c in range(first, tl.minimum(first + CHANNELS, C)):
        total = tl.broadcast_to(minus_zero(WIDE), (SIZE,))
        found = tl.full((SIZE,), 0, tl.int32)
        channel = x + n * x_n + tl.full((SIZE,), c, tl.int64) * x_c
        for t in range(taps):
            i = tl.load(index + at + t, mask=mask, other=-1)
            inside = i >= 0
            w = tl.load(weight + at + t, mask=mask, other=0.0)
            v = tl.load(channel + i.to(tl.int64) * x_s, mask=inside, other=0.0).to(WIDE)
            total = tl.where(inside, tl.fma(w, v, total), total)
            found += inside.to(tl.int32)
        result = tl.where(found > 0, total, 0.0).to(out.dtype.element_ty)
        tl.store(out + n * out_n + tl.full((SIZE,), c, tl.int64) * out_c + p * out_p, result, mask=mask)


def gather(x: Tensor, index: Tensor, weight: Tensor, out: Tensor) -> None:
    """out (N, C, P) from x (N, C, S), any strides, by the taps of each position (N * P, T)."""
    samples, channels, positions = out.shape
    grid = (samples * cdiv(positions, SIZE), cdiv(channels, CHANNELS))
    launch(
        gather_kernel, grid, x, index, weight, out, index.shape[1], positions, channels, *x.stride(), *out.stride(),
        CHANNELS=CHANNELS, SIZE=SIZE, WIDE=_wide(x),
    )  # fmt: skip


@triton.jit
def grid_gradient_kernel(
    g, x, index, slopes, factors, out, P, C, g_n, g_c, g_p, x_n, x_c, x_s, TAPS: tl.constexpr, AXES: tl.constexpr,
    SIZE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """SIZE positions of one sample: their taps' products with g over the channels, then these times the slopes."""
    blocks = tl.cdiv(P, SIZE)
    n = (tl.program_id(0) // blocks).to(tl.int64)
    p = (tl.program_id(0) % blocks).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = p < P
    e = n * P + p
    start = tl.broadcast_to(minus_zero(WIDE), (SIZE,))
    sum_x = start
    sum_y = start
    sum_z = start
    found = tl.full((SIZE,), 0, tl.int32)
    for t in range(TAPS):
        i = tl.load(index + e * TAPS + t, mask=mask, other=-1)
        inside = i >= 0
        product = start
        for c in range(C):
            channel = tl.full((SIZE,), c, tl.int64)
            u = tl.load(g + n * g_n + channel * g_c + p * g_p, mask=inside, other=0.0).to(WIDE)
            v = tl.load(x + n * x_n + channel * x_c + i.to(tl.int64) * x_s, mask=inside, other=0.0).to(WIDE)
            product = tl.fma(u, v, product)
        d = slopes + (e * TAPS + t) * AXES
        sum_x = tl.where(inside, tl.fma(tl.load(d, mask=mask, other=0.0), product, sum_x), sum_x)
        sum_y = tl.where(inside, tl.fma(tl.load(d + 1, mask=mask, other=0.0), product, sum_y), sum_y)
        if AXES == 3:
            sum_z = tl.where(inside, tl.fma(tl.load(d + 2, mask=mask, other=0.0), product, sum_z), sum_z)
        found += inside.to(tl.int32)
    for a in tl.static_range(AXES):
        factor = tl.load(factors + e * AXES + a, mask=mask, other=0.0)
        total = sum_x if a == 0 else sum_y if a == 1 else sum_z
        total = tl.where((found > 0) & (factor != 0.0), total * factor, 0.0)
        tl.store(out + e * AXES + a, total.to(out.dtype.element_ty), mask=mask)


def grid_gradient(g: Tensor, x: Tensor, index: Tensor, slopes: Tensor, factors: Tensor, out: Tensor) -> None:
    """out (N * P, A), contiguous, from g (N, C, P), x (N, C, S), any strides, and what `taps` gives."""
    samples, channels, positions = g.shape
    launch(
        grid_gradient_kernel, (samples * cdiv(positions, SIZE),), g, x, index, slopes, factors, out, positions,
        channels, *g.stride(), *x.stride(), TAPS=index.shape[1], AXES=out.shape[1], SIZE=SIZE, WIDE=_wide(x),
    )  # fmt: skip


def _wide(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == float64 else tl.float32
