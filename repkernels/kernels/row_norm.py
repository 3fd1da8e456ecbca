"""layer_norm and rms_norm of rows on a GPU (SPEC.md, sections of these names): a row stays in registers.

Backward, a program takes the rows of a lane of the weight gradients' SUM, so that x and the gradient are read once:
rows lane, lane + 1024, ... of a block of 65536 in this order, and then those of the lanes that are halved with it. It
stores what it has of these sums, and kernels/sum.py halves the rest.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide, square_root
from repkernels.kernels.functions import BLOCK, LANES, minus_zero
from repkernels.kernels.launch import can_overlap, launch
from repkernels.kernels.norm_apply import ROW, TYPES, add_rows, apply, gradient
from repkernels.kernels.norm_sums import column_statistics, halved, pair_sums
from repkernels.kernels.overlap import begin
from repkernels.kernels.rows import MOST_CHUNKS, chunks_of, total_of, where_present, width_of
from repkernels.kernels.sizes import cdiv, next_power_of_2

# The sums of g * xhat and of g of longer rows leave a thread no registers for the row.
MOST_CHUNKS_WITH_SUMS = 4


@triton.jit
def norm_kernel(
    x, residual, weight, bias, y, total, mean, inverse, N, C, stride_xn, stride_xc, stride_rn, stride_rc,
    EPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr,
    CENTRED: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr,
    WARPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """ROWS rows of CHUNKS chunks each: y and `total` contiguous, mean and inverse (N,)."""
    begin(OVERLAP)
    FULL: tl.constexpr = EVEN and ROWS == 1
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    rows = i < N
    values = ()
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        present = rows if EVEN else rows & (j < C)
        v = load(x + i * stride_xn + j.to(tl.int64) * stride_xc, present, FULL).to(WIDE)
        if RESIDUAL:
            z = load(residual + i * stride_rn + j.to(tl.int64) * stride_rc, present, FULL).to(WIDE)
            stored = (v + z).to(total.dtype.element_ty)
            tl.store(total + i * C + j, stored, mask=present)
            v = stored.to(WIDE)
        values = values + (v,)
    count = tl.zeros((ROWS, 1), WIDE) + C
    m = count
    if CENTRED:
        terms = ()
        for c in tl.static_range(CHUNKS):
            terms = terms + (where_present(values[c], c * WIDTH + lane < C, EVEN),)
        m = divide(total_of(terms, CHUNKS, ROWS, WIDTH, WARPS), count)
        tl.store(mean + i, m, mask=rows)
    squares = ()
    for c in tl.static_range(CHUNKS):
        d = values[c] - m if CENTRED else values[c]
        squares = squares + (where_present(d * d, c * WIDTH + lane < C, EVEN),)
    spread = divide(total_of(squares, CHUNKS, ROWS, WIDTH, WARPS), count)
    r = divide(tl.full((ROWS, 1), 1.0, WIDE), square_root(spread + tl.full((ROWS, 1), EPS, WIDE)))
    tl.store(inverse + i, r, mask=rows)
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        result = normalised(values[c], m, r, CENTRED)
        if WEIGHT:
            result = result * tl.load(weight + j, mask=j < C, other=0.0).to(WIDE)
        if BIAS:
            result = result + tl.load(bias + j, mask=j < C, other=0.0).to(WIDE)
        present = rows if EVEN else rows & (j < C)
        tl.store(y + i * C + j, result.to(y.dtype.element_ty), mask=None if FULL else present)


@triton.jit
def norm_backward_kernel(
    g, x, mean, inverse, weight, extra, dx, sums, N, C, stride_gn, stride_gc, stride_xn, stride_xc, stride_en,
    stride_ec, STEP: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr, CENTRED: tl.constexpr, WEIGHT: tl.constexpr,
    EXTRA: tl.constexpr, PARAMETERS: tl.constexpr, WIDE: tl.constexpr, WARPS: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """dx of the rows of PARTS * ROWS lanes of one block of STEP rows, and these lanes' part of the weight gradients.

    Lane l has rows l, l + LANES, ... of the block. Of the lanes l, l + LANES / 2, ... the sum by halvings is stored:
    sums[block * LANES / PARTS + l, s, C] are those of g * xhat and, if CENTRED, of g. KEEP: a row stays in registers
    between its sums and its gradient, otherwise it is read again, from a cache.
    """
    FULL: tl.constexpr = EVEN and ROWS == 1
    group: tl.constexpr = LANES // PARTS
    block = (tl.program_id(0) // (group // ROWS)).to(tl.int64)
    first = (tl.program_id(0) % (group // ROWS)) * ROWS
    top = block * STEP
    count = tl.minimum(N - top, STEP).to(tl.int32)
    lane = tl.arange(0, WIDTH)[None, :]
    n = tl.zeros((ROWS, 1), WIDE) + C
    # Of 4 lanes: 0 + 2, 1 + 3, then both. -0 changes no sum.
    OUTER: tl.constexpr = 2 if PARTS == 4 else 1
    INNER: tl.constexpr = PARTS // OUTER
    # rms_norm has no bias.
    SUMS: tl.constexpr = 2 if CENTRED else 1
    COUNT: tl.constexpr = SUMS * CHUNKS if PARAMETERS else 0
    done = empty(COUNT, ROWS, WIDTH, WIDE)
    for o in range(OUTER):
        pair = empty(COUNT, ROWS, WIDTH, WIDE)
        for k in range(INNER):
            lanes = empty(COUNT, ROWS, WIDTH, WIDE)
            for start in range(first + (k * OUTER + o) * group, count, LANES):
                row = start + tl.arange(0, ROWS)[:, None]
                i = top + row
                rows = row < count
                r = tl.load(inverse + i, mask=rows, other=0.0)
                m = tl.load(mean + i, mask=rows, other=0.0) if CENTRED else r
                upstream, values, products, weighted = (), (), (), ()
                for c in tl.static_range(CHUNKS):
                    j = c * WIDTH + lane
                    present = rows if EVEN else rows & (j < C)
                    u = load(g + i * stride_gn + j.to(tl.int64) * stride_gc, present, FULL)
                    v = load(x + i * stride_xn + j.to(tl.int64) * stride_xc, present, FULL)
                    if KEEP:
                        upstream, values = upstream + (u,), values + (v,)
                    gw = u.to(WIDE)
                    if WEIGHT:
                        gw = gw * tl.load(weight + j, mask=j < C, other=0.0).to(WIDE)
                    xhat = normalised(v.to(WIDE), m, r, CENTRED)
                    products = products + (where_present(gw * xhat, j < C, EVEN),)
                    weighted = weighted + (where_present(gw, j < C, EVEN),)
                a = divide(total_of(products, CHUNKS, ROWS, WIDTH, WARPS), n)
                b = divide(total_of(weighted, CHUNKS, ROWS, WIDTH, WARPS), n) if CENTRED else a
                added = ()
                for c in tl.static_range(CHUNKS):
                    j = c * WIDTH + lane
                    present = rows if EVEN else rows & (j < C)
                    if KEEP:
                        u, v = upstream[c], values[c]
                    else:
                        u = load_again(g + i * stride_gn + j.to(tl.int64) * stride_gc, present, FULL)
                        v = load_again(x + i * stride_xn + j.to(tl.int64) * stride_xc, present, FULL)
                    u = u.to(WIDE)
                    gw = u
                    if WEIGHT:
                        gw = gw * tl.load(weight + j, mask=j < C, other=0.0).to(WIDE)
                    xhat = normalised(v.to(WIDE), m, r, CENTRED)
                    inner = gw - b if CENTRED else gw
                    result = (r * (inner - xhat * a)).to(dx.dtype.element_ty)
                    if EXTRA:
                        e = tl.load(extra + i * stride_en + j.to(tl.int64) * stride_ec, mask=present, other=0.0)
                        result = (result.to(WIDE) + e.to(WIDE)).to(dx.dtype.element_ty)
                    tl.store(dx + i * C + j, result, mask=None if FULL else present)
                    if PARAMETERS:
                        added = added + (lanes[SUMS * c] + where_present(u * xhat, rows, ROWS == 1),)
                        if CENTRED:
                            added = added + (lanes[SUMS * c + 1] + where_present(u, rows, ROWS == 1),)
                lanes = added
            pair = plus(pair, lanes, COUNT)
        done = plus(done, pair, COUNT)
    if PARAMETERS:
        at = sums + (block * group + first + tl.arange(0, ROWS)[:, None]) * SUMS * C
        for c in tl.static_range(CHUNKS):
            j = c * WIDTH + lane
            for s in tl.static_range(SUMS):
                tl.store(at + s * C + j, done[SUMS * c + s], mask=j < C)


@triton.jit
def load(at, present, FULL: tl.constexpr):
    """What lies at `at`; 0 where nothing is present, which is nowhere if FULL."""
    return tl.load(at) if FULL else tl.load(at, mask=present, other=0.0)


@triton.jit
def load_again(at, present, FULL: tl.constexpr):
    """`load` by another policy: by the same, the compiler would keep what was loaded first."""
    if FULL:
        v = tl.load(at, eviction_policy="evict_first")
    else:
        v = tl.load(at, mask=present, other=0.0, eviction_policy="evict_first")
    return v


@triton.jit
def normalised(v, m, r, CENTRED: tl.constexpr):
    """xhat of elements v."""
    return (v - m) * r if CENTRED else v * r


@triton.jit
def empty(COUNT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """A tuple of COUNT blocks of -0."""
    lanes = ()
    for _ in tl.static_range(COUNT):
        lanes = lanes + (tl.broadcast_to(minus_zero(WIDE), (ROWS, WIDTH)),)
    return lanes


@triton.jit
def plus(a, b, COUNT: tl.constexpr):
    """a + b of tuples of COUNT blocks."""
    total = ()
    for k in tl.static_range(COUNT):
        total = total + (a[k] + b[k],)
    return total


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out_dtype: torch.dtype,
    centred: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """x (R, C) -> y (R, C) in `out_dtype`, x + residual in x's dtype, mean (R,) and r (R,) in the computing format.

    mean is empty unless `centred`.
    """
    rows, columns = x.shape
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    total = None if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.empty(rows if centred else 0, dtype=wide, device=x.device)
    inverse = torch.empty(rows, dtype=wide, device=x.device)
    if columns == 0:
        return y, total, mean.fill_(math.nan), inverse.fill_(math.nan)
    w, b = (None if v is None else v.contiguous() for v in (weight, bias))
    chunks = chunks_of(columns)
    if chunks > MOST_CHUNKS:
        values = x
        if residual is not None and total is not None:
            values = add_rows(x, residual, total)
        mean, _, inverse = column_statistics(values.t()[None, :, None], eps, centred)
        apply(values, mean if centred else None, inverse, w, b, y, ROW)
        return y, total, mean, inverse
    many, warps, registers = configuration(columns, centred)
    overlap = can_overlap(x.device)
    launch(
        norm_kernel, (cdiv(rows, many),), x, *_or(x, residual, w, b), y, y if total is None else total, mean,
        inverse, rows, columns, *x.stride(), *(x if residual is None else residual).stride(), EPS=float(eps), ROWS=many,
        WIDTH=width_of(columns), CHUNKS=chunks, EVEN=chunks * width_of(columns) == columns, CENTRED=centred,
        RESIDUAL=residual is not None, WEIGHT=w is not None, BIAS=b is not None, WIDE=TYPES[wide], WARPS=warps,
        OVERLAP=overlap, overlap=overlap, num_warps=warps,
        registers=registers if wide == torch.float32 else None,
    )  # fmt: skip
    return y, total, mean, inverse


def backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    extra: Tensor | None,
    parameters: bool,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: of x (R, C) in its dtype, of weight and bias (C,) in the computing format, empty unless `parameters`,
    and the latter unless `centred`.

    mean and inverse come from `forward`. extra: a gradient of x + residual, added to the first after its rounding.
    """
    rows, columns = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        dw, db = (inverse.new_zeros(columns if wanted else 0) for wanted in (parameters, parameters and centred))
        return dx, dw, db
    w = None if weight is None else weight.contiguous()
    chunks, width = chunks_of(columns), width_of(columns)
    if chunks > MOST_CHUNKS:
        return _backward_long(grad, x, mean if centred else None, inverse, w, extra, parameters, dx)
    if parameters and chunks > (MOST_CHUNKS_WITH_SUMS if centred else MOST_CHUNKS):
        dx = backward(grad, x, mean, inverse, w, extra, False, centred)[0]
        return dx, *pair_sums(grad[None, :, None], x[None, :, None], mean, inverse, None, 0)
    many, warps, parts, keep, registers = backward_configuration(columns, parameters, centred)
    lanes = min(LANES.value, next_power_of_2(rows)) if parameters else BLOCK.value
    many, parts = min(many, lanes), parts if lanes == LANES.value else 1
    blocks, group = cdiv(rows, BLOCK.value), lanes // parts
    # Without weight gradients there is nothing to do for lanes beyond the last row.
    programs = blocks * (group // many) if parameters else cdiv(rows, many)
    kinds = 2 if centred else 1
    sums = inverse.new_empty((blocks, group, kinds * columns) if parameters else (0,))
    e = x if extra is None else extra
    launch(
        norm_backward_kernel, (programs,), grad, x, mean, inverse, *_or(x, w, extra), dx, sums, rows, columns,
        *grad.stride(), *x.stride(), *e.stride(), STEP=BLOCK.value, LANES=lanes, PARTS=parts, ROWS=many, WIDTH=width,
        CHUNKS=chunks, EVEN=chunks * width == columns, CENTRED=centred, WEIGHT=w is not None,
        EXTRA=extra is not None, PARAMETERS=parameters, WIDE=TYPES[inverse.dtype], WARPS=warps,
        KEEP=keep, num_warps=warps,
        registers=registers if inverse.dtype == torch.float32 else None,
    )  # fmt: skip
    if not parameters:
        return dx, sums, sums.clone()
    sums = halved(sums)
    return dx, sums[:columns].clone(), sums[columns:].clone()


def _backward_long(
    grad: Tensor,
    x: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    weight: Tensor | None,
    extra: Tensor | None,
    parameters: bool,
    dx: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """`backward` for rows that do not fit into registers: their sums, then dx, then the sums over rows."""
    columns = x.shape[1]
    g, v = (t.t()[None, :, None] for t in (grad, x))
    products, plain = pair_sums(g, v, mean, inverse, weight, 1)
    count = torch.full_like(inverse, columns)
    gradient(grad, x, mean, inverse, weight, products / count, plain / count, inverse, dx, ROW)
    if extra is not None:
        add_rows(dx, extra, dx)
    if not parameters:
        return dx, inverse.new_empty(0), inverse.new_empty(0)
    dw, db = pair_sums(grad[None, :, None], x[None, :, None], mean, inverse, None, 0)
    return dx, dw, db if mean is not None else db.new_empty(0)


def _or(x: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """x in the place of what is absent."""
    return [x if t is None else t for t in tensors]


def configuration(columns: int, centred: bool) -> tuple[int, int, int | None]:
    """Rows of a program of `forward`, its warps, and the most registers of a thread; no bit depends on them."""
    chunks, width = chunks_of(columns), width_of(columns)
    warps = 1 if chunks == 1 else 2 if chunks <= 4 else 8
    # So that three rows of 16384 fit into a multiprocessor.
    return max(1, 1024 // width), warps, 80 if centred and chunks > 8 else None


def backward_configuration(columns: int, parameters: bool, centred: bool) -> tuple[int, int, int, bool, int | None]:
    """Rows of a program of `backward` side by side, its warps, the lanes of one row that it halves (1, 2 or 4),
    whether a row stays in registers, and the most registers of a thread. No bit depends on them.
    """
    chunks, width = chunks_of(columns), width_of(columns)
    keep = chunks == 1 or not (parameters and centred)
    warps = 1 if chunks == 1 else 2 if chunks == 2 else 4 if chunks <= 4 else 8
    # Four rows of 4096 side by side are worth a few registers kept in memory.
    return max(1, 1024 // width), warps, 1, keep, 128 if parameters and 2 < chunks <= 4 else None
