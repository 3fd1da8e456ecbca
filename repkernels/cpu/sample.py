"""Sampling of tokens on the CPU (SPEC.md, "Sampling"): one row of logits at a time, widened first."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import bitcast, ln_f32
from repkernels.cpu.random import F32, HALF, LOW, U64, _high_product, philox
from repkernels.cpu.rows import exponentials, row_maximum, row_sum, scratch, shift
from repkernels.cpu.spread import spread

UNIT = F32(2.0**40)
LEAST = F32(2.0**-40)
BELOW = np.int32(0x2B7FFFFF)  # the bits of LEAST, less 1
BINS = 1024
PROMPT = np.int32(1 << 30)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None,
    seeds: Tensor, positions: Tensor, samples: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(tokens int64 (B,), e fp32 (B, V) after the filters) of logits (B, V). Parameters (B,): fp32, top_k and the last
    three int64."""
    logits = logits.float().contiguous()
    rows = len(logits)
    none = torch.zeros(rows, dtype=torch.int64)
    one = torch.ones(rows, dtype=torch.float32)
    tokens, e = torch.empty(rows, dtype=torch.int64), torch.empty(logits.shape, dtype=torch.float32)
    filters = [
        none if top_k is None else top_k,
        one if top_p is None else top_p,
        none.float() if min_p is None else min_p,
    ]
    arrays = [t.contiguous().numpy() for t in (temperature, *filters, seeds, positions, samples)]
    spread(_sample, rows, 8 * logits.numel(), logits.numpy(), *arrays, tokens.numpy(), e.numpy())
    return tokens, e


def scaled_logits(logits: Tensor, temperature: Tensor, e: Tensor) -> Tensor:
    """Processed logits, fp32 (B, V): logits over the temperature where e > 0, otherwise -inf."""
    out = torch.empty_like(e)
    logits = logits.float().contiguous()
    spread(
        _scaled, len(logits), logits.numel(), logits.numpy(), temperature.contiguous().numpy(), e.numpy(), out.numpy()
    )
    return out


def penalised(logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Logits after the penalties, fp32 (B, V). counts: int32 (B, V), how often the token was put out, plus 2^30 or
    more where it stands in the prompt; the penalties (B,) fp32."""
    out = torch.empty(logits.shape, dtype=torch.float32)
    logits = logits.float().contiguous()
    arrays = [t.contiguous().numpy() for t in (repetition, frequency, presence)]
    spread(_penalised, len(logits), logits.numel(), logits.numpy(), counts.numpy(), *arrays, out.numpy())
    return out


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """log_softmax of the rows of logits (B, V) at `tokens` (B, n), fp32."""
    out = torch.empty(tokens.shape, dtype=torch.float32)
    logits = logits.float().contiguous()
    spread(_log_probabilities, len(logits), logits.numel(), logits.numpy(), tokens.contiguous().numpy(), out.numpy())
    return out


@kernel
def _sample(start, stop, logits, temperature, top_k, top_p, min_p, seeds, positions, samples, tokens, weights):
    state = keep_subnormals()
    bins = np.empty(BINS, np.int64)
    for i in range(start, stop):
        row, e = logits[i], weights[i]
        hot = temperature[i] > F32(0)
        divisor = temperature[i] if hot else F32(1)
        m, token = F32(-np.inf), -1
        for j in range(e.size):
            z = row[j] / divisor
            e[j] = z
            if z > m or (z == m and token < 0):
                m, token = z, j
        for j in range(e.size):
            z = e[j]
            e[j] = F32(0) if z == m else F32(-np.inf) if z != z else z - m
        exponentials(e, e)
        for j in range(e.size):
            e[j] = e[j] if e[j] >= LEAST else F32(0)
        if hot:
            if top_k[i] > 0:
                _cut(e, bins, False, top_k[i])
            if top_p[i] < F32(1):
                share = U64(np.int64(max(top_p[i], F32(0)) * F32(2.0**32)))
                limit = np.int64(_high_product(share, U64(0), U64(_total(e))))
                _cut(e, bins, True, max(limit, 1))
            if min_p[i] > LEAST:
                least = min(min_p[i], F32(1))
                for j in range(e.size):
                    e[j] = F32(0) if e[j] < least else e[j]
            if m > F32(-np.inf):
                stream = U64(samples[i]) << HALF | U64(positions[i]) & LOW
                high, low, _, _ = philox(U64(1 << 63), U64(seeds[i]), stream)
                place = np.int64(_high_product(high, low, U64(_total(e))))
                token = 0
                while place >= _share(e[token]):
                    place -= _share(e[token])
                    token += 1
        tokens[i] = max(token, 0)
    restore(state)


@njit
def _share(e):
    return np.int64(e * UNIT)


@njit
def _total(e):
    total = np.int64(0)
    for j in range(e.size):
        total += _share(e[j])
    return total


@njit
def _cut(e, bins, by_mass, wanted):
    """Keeps the first of e by descending value, the lowest index first among equals, until their shares, or with
    by_mass=False their number, reach `wanted`; the others become 0."""
    found, width = np.int32(0), 29
    while width > 0:
        bits = min(width, 10)
        below = width - bits
        for b in range(BINS):
            bins[b] = 0
        for j in range(e.size):
            key = max(bitcast(e[j]) - BELOW, 0)
            if key >> width == found:
                bins[(key >> below) & ((1 << bits) - 1)] += _share(e[j]) if by_mass else 1
        digit = (1 << bits) - 1
        while digit > 0 and bins[digit] < wanted:
            wanted -= bins[digit]
            digit -= 1
        found, width = np.int32(found << bits | digit), below
    for j in range(e.size):
        key = max(bitcast(e[j]) - BELOW, 0)
        if key < found or (key == found and wanted <= 0):
            e[j] = F32(0)
        elif key == found:
            wanted -= _share(e[j]) if by_mass else 1


@kernel
def _scaled(start, stop, logits, temperature, e, out):
    state = keep_subnormals()
    for i in range(start, stop):
        divisor = temperature[i] if temperature[i] > F32(0) else F32(1)
        for j in range(logits.shape[1]):
            out[i, j] = logits[i, j] / divisor if e[i, j] > F32(0) else F32(-np.inf)
    restore(state)


@kernel
def _log_probabilities(start, stop, logits, tokens, out):
    state = keep_subnormals()
    line, lanes, sums = scratch(logits.shape[1])
    for i in range(start, stop):
        m = row_maximum(logits[i])
        shift(logits[i], m, line)
        exponentials(line, line)
        logarithm = ln_f32(row_sum(line, lanes, sums))
        for j in range(tokens.shape[1]):
            out[i, j] = (logits[i, tokens[i, j]] - m) - logarithm
    restore(state)


@kernel
def _penalised(start, stop, logits, counts, repetition, frequency, presence, out):
    state = keep_subnormals()
    for i in range(start, stop):
        for j in range(logits.shape[1]):
            y, count = logits[i, j], counts[i, j]
            if count > 0 and repetition[i] != F32(1):
                y = y * repetition[i] if y < F32(0) else y / repetition[i]
            times = count & (PROMPT - 1)
            if times > 0:
                y = y - frequency[i] * F32(times)
                y = y - presence[i]
            out[i, j] = y
    restore(state)
