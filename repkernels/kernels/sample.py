"""Sampling of tokens on a GPU (SPEC.md, "Sampling"): rows cut into chunks, whose integer sums have no order.

Weights e are written once, and filters set those of tokens that they take away to 0. The last token that top-k or
top-p keeps is found by its key, an integer in the order of e, RADIX_BITS bits at a time: every pass sums what stands in
each of 16 bins, by chunk, and the next pass begins by adding up the chunks and choosing the bin. Nothing is sorted.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels import softmax
from repkernels.kernels.functions import exp_f32, from_order_key, order_key
from repkernels.kernels.launch import launch
from repkernels.kernels.random import philox, word64
from repkernels.kernels.sizes import cdiv, next_power_of_2

CHUNK = 4096
BELOW = tl.constexpr(0x2B7FFFFF)  # the bits of 2^-40, less 1: the key of the least weight is 1
KEY_BITS = 29
RADIX_BITS = tl.constexpr(4)
BINS = tl.constexpr(16)
PROMPT = tl.constexpr(1 << 30)
LOWEST = tl.constexpr(-0x80000000)


@triton.jit
def top_kernel(logits, tops, V, stride_b, stride_v, temperature, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """tops[b, chunk]: the largest z of a chunk and its first id, as one integer in their order."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = chunk * CHUNK + tl.arange(0, CHUNK)
    z = scaled(logits + row * stride_b + j.to(tl.int64) * stride_v, j < V, tl.load(temperature + row))
    # NaN is below everything, and the zeros are equal.
    key = tl.where(z != z, LOWEST, order_key(tl.where(z == 0.0, 0.0, z)))
    place = (key.to(tl.int64) << 32) | (0x7FFFFFFF - j).to(tl.int64)
    tl.store(tops + row * CHUNKS + chunk, tl.max(tl.where(j < V, place, -0x8000000000000000), 0))


@triton.jit
def scaled(at, present, temperature):
    """z of the logits at these places."""
    x = tl.load(at, mask=present, other=0.0).to(tl.float32)
    return tl.div_rn(x, tl.where(temperature > 0.0, temperature, 1.0) + tl.zeros_like(x))


@triton.jit
def top_of(tops, row, CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr):
    """(the largest z of a row, its first id)."""
    i = tl.arange(0, CHUNKS_UP)
    place = tl.max(tl.load(tops + row * CHUNKS + i, mask=i < CHUNKS, other=-0x8000000000000000), 0)
    key = (place >> 32).to(tl.int32)
    token = 0x7FFFFFFF - (place & 0x7FFFFFFF)
    return tl.where(key == LOWEST, float("-inf"), from_order_key(key)), token


@triton.jit
def share(e):
    """The integer weight q of e."""
    return floor_scaled(e, 40)


@triton.jit
def floor_scaled(x, BITS: tl.constexpr):
    """floor(x * 2**BITS) as int64 of fp32 x from 0 to 1, BITS >= 23: by its bits, since not every GPU converts."""
    bits = x.to(tl.int32, bitcast=True)
    significand = ((bits & 0x007FFFFF) | 0x00800000).to(tl.int64)
    return (significand << (BITS - 23)) >> tl.minimum(127 - (bits >> 23), 63).to(tl.int64)


@triton.jit
def key_of(e):
    """An integer in the order of e."""
    return tl.maximum(e.to(tl.int32, bitcast=True) - BELOW, 0)


@triton.jit
def weights_kernel(
    logits, tops, e, totals, V, stride_b, stride_v, temperature, CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """e of a chunk, and the sum of its shares."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    m, _ = top_of(tops, row, CHUNKS, CHUNKS_UP)
    j = chunk * CHUNK + tl.arange(0, CHUNK)
    z = scaled(logits + row * stride_b + j.to(tl.int64) * stride_v, j < V, tl.load(temperature + row))
    s = tl.where(z == m, 0.0, tl.where(z != z, float("-inf"), z - m))
    w = exp_f32(s)
    w = tl.where((j < V) & (key_of(w) > 0), w, 0.0)
    tl.store(e + row * V + j, w, mask=j < V)
    tl.store(totals + row * CHUNKS + chunk, tl.sum(share(w), 0))


@triton.jit
def total_of(totals, row, CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr):
    """The sum of all shares of a row."""
    i = tl.arange(0, CHUNKS_UP)
    return tl.sum(tl.load(totals + row * CHUNKS + i, mask=i < CHUNKS, other=0), 0)


@triton.jit
def active(wanted, temperature, row, BY_MASS: tl.constexpr):
    """Whether a row has this filter."""
    number = tl.load(wanted + row)
    return (number < 1.0 if BY_MASS else number > 0) & (tl.load(temperature + row) > 0.0)


@triton.jit
def state_of(
    wanted, totals, state, bins, row, step, FIRST: tl.constexpr, STEPS: tl.constexpr, BY_MASS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr,
):  # fmt: skip
    """(bits of the key that are known before a step, what of the wanted amount remains among keys with these bits)."""
    if FIRST:
        prefix = tl.full([], 0, tl.int64)
        if BY_MASS:
            p = tl.load(wanted + row)
            part = floor_scaled(tl.where((p > 0.0) & (p < 1.0), p, 0.0), 32)
            total = total_of(totals, row, CHUNKS, CHUNKS_UP)
            rest = tl.umulhi(total.to(tl.uint64), part.to(tl.uint64) << 32).to(tl.int64)
            rest = tl.maximum(rest, 1)
        else:
            rest = tl.load(wanted + row)
    else:
        at = state + (row * (STEPS + 1) + step - 1) * 2
        prefix, rest = tl.load(at), tl.load(at + 1)
        i, b = tl.arange(0, CHUNKS_UP), tl.arange(0, BINS)
        table = bins + ((step + 1) % 2 * tl.num_programs(0) + row) * CHUNKS * BINS
        amounts = tl.load(table + i[:, None] * BINS + b[None, :], mask=(i < CHUNKS)[:, None], other=0)
        amounts = tl.sum(amounts, 0)
        across = tl.reshape(amounts, (BINS, 1))
        # What stands in higher bins than each.
        above = tl.sum(tl.where(b[:, None] > b[None, :], across, 0), 0)
        hit = (above < rest) & (above + amounts >= rest)
        prefix = (prefix << RADIX_BITS) | tl.sum(tl.where(hit, b, 0), 0)
        rest = rest - tl.sum(tl.where(hit, above, 0), 0)
    return prefix, rest


@triton.jit(do_not_specialize=["step"])
def search_kernel(
    e, wanted, temperature, totals, state, bins, V, step, FIRST: tl.constexpr, STEPS: tl.constexpr,
    BY_MASS: tl.constexpr, CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One step: the amounts, shares or numbers of tokens, of a chunk in the bins of the next bits of the key."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if active(wanted, temperature, row, BY_MASS):
        prefix, rest = state_of(wanted, totals, state, bins, row, step, FIRST, STEPS, BY_MASS, CHUNKS, CHUNKS_UP)
        if chunk == 0:
            at = state + (row * (STEPS + 1) + step) * 2
            tl.store(at, prefix)
            tl.store(at + 1, rest)
        j = chunk * CHUNK + tl.arange(0, CHUNK)
        w = tl.load(e + row * V + j, mask=j < V, other=0.0)
        key = key_of(w)
        shift = (STEPS - 1 - step) * RADIX_BITS
        inside = (j < V) & ((key >> shift >> RADIX_BITS) == prefix)
        to = bins + ((step % 2 * tl.num_programs(0) + row) * CHUNKS + chunk) * BINS
        if tl.max(inside.to(tl.int32), 0) > 0:
            digit = tl.where(inside, (key >> shift) & (BINS - 1), -1)
            amount = share(w) if BY_MASS else inside.to(tl.int64)
            for b in tl.static_range(BINS):
                tl.store(to + b, tl.sum(tl.where(digit == b, amount, 0), 0))
        else:
            tl.store(to + tl.arange(0, BINS), tl.zeros((BINS,), tl.int64))


@triton.jit
def find(amounts, target, A: tl.constexpr, B: tl.constexpr):
    """(i, target less the amounts before i) of the first i at which amounts (A * B,) add up to more than target."""
    table = tl.reshape(amounts, (A, B))
    row, rest = _find(tl.sum(table, 1), target, A)
    line = tl.sum(tl.where((tl.arange(0, A) == row)[:, None], table, 0), 0)
    column, rest = _find(line, rest, B)
    return row * B + column, rest


@triton.jit
def _find(amounts, target, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.sum(tl.where(i[:, None] < i[None, :], tl.reshape(amounts, (N, 1)), 0), 0)
    hit = (before <= target) & (before + amounts > target)
    return tl.sum(tl.where(hit, i, 0), 0), target - tl.sum(tl.where(hit, before, 0), 0)


@triton.jit
def bound_kernel(
    e, wanted, temperature, totals, state, bins, V, STEPS: tl.constexpr, BY_MASS: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNKS_UP: tl.constexpr, CHUNK: tl.constexpr, A: tl.constexpr, B: tl.constexpr, A_CHUNK: tl.constexpr,
    B_CHUNK: tl.constexpr,
):  # fmt: skip
    """The key and the id of the last token that a filter keeps, to the state after the last step."""
    row = tl.program_id(0).to(tl.int64)
    at = state + (row * (STEPS + 1) + STEPS) * 2
    if active(wanted, temperature, row, BY_MASS):
        key, rest = state_of(wanted, totals, state, bins, row, STEPS, False, STEPS, BY_MASS, CHUNKS, CHUNKS_UP)
        i = tl.arange(0, CHUNKS_UP)
        ties = bins + ((STEPS - 1) % 2 * tl.num_programs(0) + row) * CHUNKS * BINS + (key & (BINS - 1))
        chunk, rest = find(tl.load(ties + i * BINS, mask=i < CHUNKS, other=0), rest - 1, A, B)
        j = chunk * CHUNK + tl.arange(0, CHUNK)
        w = tl.load(e + row * V + j, mask=j < V, other=0.0)
        tie = (j < V) & (key_of(w) == key)
        place, _ = find(tl.where(tie, share(w) if BY_MASS else tie.to(tl.int64), 0), rest, A_CHUNK, B_CHUNK)
        tl.store(at, key)
        tl.store(at + 1, (chunk * CHUNK + place).to(tl.int64))
    else:
        tl.store(at, tl.full([], -1, tl.int64))


@triton.jit
def filter_kernel(
    e, bounds, min_p, temperature, totals, V, stride, BOUND: tl.constexpr, LEAST: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Sets e to 0 behind the last token kept (BOUND) and below min_p (LEAST), and sums up the shares again."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = chunk * CHUNK + tl.arange(0, CHUNK)
    w = tl.load(e + row * V + j, mask=j < V, other=0.0)
    if BOUND:
        last_key, last = tl.load(bounds + row * stride), tl.load(bounds + row * stride + 1)
        key = key_of(w)
        w = tl.where((key > last_key) | ((key == last_key) & (j <= last)), w, 0.0)
    if LEAST:
        least = tl.load(min_p + row)
        least = tl.where((tl.load(temperature + row) > 0.0) & (least == least), tl.where(least < 1.0, least, 1.0), 0.0)
        w = tl.where(w < least, 0.0, w)
    tl.store(e + row * V + j, w, mask=j < V)
    tl.store(totals + row * CHUNKS + chunk, tl.sum(share(w), 0))


@triton.jit
def draw_kernel(
    tops, e, totals, temperature, seeds, positions, samples, tokens, V, CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr,
    CHUNK: tl.constexpr, A: tl.constexpr, B: tl.constexpr, A_CHUNK: tl.constexpr, B_CHUNK: tl.constexpr,
):  # fmt: skip
    """The token of a row: the likeliest, or the one that the request's word points to."""
    row = tl.program_id(0).to(tl.int64)
    m, token = top_of(tops, row, CHUNKS, CHUNKS_UP)
    if (tl.load(temperature + row) > 0.0) & (m > float("-inf")):
        stream = (tl.load(samples + row) << 32) | (tl.load(positions + row) & 0xFFFFFFFF)
        block = tl.full([1], -0x8000000000000000, tl.int64)
        high, low, _, _ = philox(block, tl.load(seeds + row), stream)
        word = tl.sum(word64(high, low).to(tl.int64, bitcast=True), 0).to(tl.uint64, bitcast=True)
        i = tl.arange(0, CHUNKS_UP)
        amounts = tl.load(totals + row * CHUNKS + i, mask=i < CHUNKS, other=0)
        place = tl.umulhi(word, tl.sum(amounts, 0).to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
        chunk, place = find(amounts, place, A, B)
        j = chunk * CHUNK + tl.arange(0, CHUNK)
        within, _ = find(share(tl.load(e + row * V + j, mask=j < V, other=0.0)), place, A_CHUNK, B_CHUNK)
        token = (chunk * CHUNK + within).to(tl.int64)
    tl.store(tokens + row, token)


@triton.jit
def scaled_kernel(logits, temperature, e, out, V, stride_b, stride_v, CHUNK: tl.constexpr):
    """z where e > 0, otherwise -inf."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    z = scaled(logits + row * stride_b + j.to(tl.int64) * stride_v, j < V, tl.load(temperature + row))
    kept = tl.load(e + row * V + j, mask=j < V, other=0.0) > 0.0
    tl.store(out + row * V + j, tl.where(kept, z, float("-inf")), mask=j < V)


@triton.jit
def penalised_kernel(
    logits, counts, repetition, frequency, presence, out, V, stride_b, stride_v, CHUNK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    y = tl.load(logits + row * stride_b + j.to(tl.int64) * stride_v, mask=j < V, other=0.0).to(tl.float32)
    count = tl.load(counts + row * V + j, mask=j < V, other=0)
    r = tl.load(repetition + row) + tl.zeros_like(y)
    repeated = tl.where(y < 0.0, y * r, tl.div_rn(y, r))
    y = tl.where((count > 0) & (r != 1.0), repeated, y)
    times = count & (PROMPT - 1)
    less = (y - tl.load(frequency + row) * times.to(tl.float32)) - tl.load(presence + row)
    tl.store(out + row * V + j, tl.where(times > 0, less, y), mask=j < V)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None,
    seeds: Tensor, positions: Tensor, samples: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(tokens int64 (B,), e fp32 (B, V) after the filters) of logits (B, V). Parameters (B,): fp32, top_k and the last
    three int64."""
    rows, classes = logits.shape
    chunk = min(CHUNK, next_power_of_2(classes))
    chunks = cdiv(classes, chunk)
    cut: dict[str, Any] = {"CHUNKS": chunks, "CHUNK": chunk}
    whole: dict[str, Any] = {"CHUNKS_UP": next_power_of_2(chunks)}
    halves: dict[str, Any] = dict(
        zip(("A", "B", "A_CHUNK", "B_CHUNK"), (*_halves(whole["CHUNKS_UP"]), *_halves(chunk)), strict=True)
    )
    grid = (rows, chunks)

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    tokens, e = empty(rows), empty(rows, classes, dtype=torch.float32)
    tops, totals = empty(rows, chunks), empty(rows, chunks)
    launch(top_kernel, grid, logits, tops, classes, *logits.stride(), temperature, **cut)
    launch(weights_kernel, grid, logits, tops, e, totals, classes, *logits.stride(), temperature, **cut, **whole)
    filters = [(f, by_mass) for f, by_mass in ((top_k, False), (top_p, True)) if f is not None]
    steps = cdiv(KEY_BITS, RADIX_BITS.value)
    for i, (wanted, by_mass) in enumerate(filters):
        state, bins = empty(rows, steps + 1, 2), empty(2, rows, chunks, BINS.value)
        arguments = (e, wanted, temperature, totals, state, bins, classes)
        for step in range(steps):
            launch(
                search_kernel, grid, *arguments, step, FIRST=step == 0, STEPS=steps, BY_MASS=by_mass, **cut, **whole,
                num_warps=8,
            )  # fmt: skip
        launch(bound_kernel, (rows,), *arguments, STEPS=steps, BY_MASS=by_mass, **cut, **whole, **halves, num_warps=8)
        least = min_p if i == len(filters) - 1 else None
        launch(
            filter_kernel, grid, e, state[:, steps], temperature if least is None else least, temperature, totals,
            classes, state.stride(0), BOUND=True, LEAST=least is not None, **cut,
        )  # fmt: skip
    if min_p is not None and not filters:
        launch(filter_kernel, grid, e, tops, min_p, temperature, totals, classes, 0, BOUND=False, LEAST=True, **cut)
    launch(
        draw_kernel, (rows,), tops, e, totals, temperature, seeds, positions, samples, tokens, classes, **cut, **whole,
        **halves, num_warps=8,
    )  # fmt: skip
    return tokens, e


def _halves(n: int) -> tuple[int, int]:
    """Two powers of two of product n, alike in size."""
    high = 1 << n.bit_length() // 2
    return high, n // high


def scaled_logits(logits: Tensor, temperature: Tensor, e: Tensor) -> Tensor:
    """Processed logits, fp32 (B, V): logits over the temperature where e > 0, otherwise -inf."""
    out = torch.empty_like(e)
    chunk = min(CHUNK, next_power_of_2(e.shape[1]))
    grid = (e.shape[0], cdiv(e.shape[1], chunk))
    launch(scaled_kernel, grid, logits, temperature, e, out, e.shape[1], *logits.stride(), CHUNK=chunk)
    return out


def penalised(logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Logits after the penalties, fp32 (B, V). counts: int32 (B, V), how often the token was put out, plus 2^30 or
    more where it stands in the prompt; the penalties (B,) fp32."""
    rows, classes = logits.shape
    out = torch.empty((rows, classes), dtype=torch.float32, device=logits.device)
    chunk = min(CHUNK, next_power_of_2(classes))
    launch(
        penalised_kernel, (rows, cdiv(classes, chunk)), logits, counts, repetition, frequency, presence, out, classes,
        *logits.stride(), CHUNK=chunk,
    )  # fmt: skip
    return out


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """log_softmax of the rows of logits (B, V) at `tokens` (B, n), fp32."""
    return softmax.softmax(logits.float(), True).gather(1, tokens)
