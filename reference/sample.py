"""Sampling of a token from one row of logits, SPEC.md, "Sampling": by sorting and Python's integers."""

import numpy as np

from reference import softmax
from reference.functions import exp_f32
from reference.philox import block

F32 = np.float32
INFINITY = F32(np.inf)
UNIT = 40  # a weight of 1 is 2^UNIT
BLOCK = 1 << 63


def penalised(
    x: np.ndarray, prompt: list[int], output: list[int], repetition: float, frequency: float, presence: float
) -> np.ndarray:
    """Logits x (V,) after the penalties; entries of `prompt` and `output` below 0 count for nothing."""
    y = np.array(x, F32)
    prompt, output = [t for t in prompt if t >= 0], [t for t in output if t >= 0]
    with np.errstate(all="ignore"):
        if F32(repetition) != 1:
            for t in {*prompt, *output}:
                y[t] = y[t] * F32(repetition) if y[t] < 0 else y[t] / F32(repetition)
        for t in set(output):
            y[t] = y[t] - F32(frequency) * F32(output.count(t))
            y[t] = y[t] - F32(presence)
    return y


def scaled(x: np.ndarray, temperature: float) -> np.ndarray:
    """z (V,) of logits x."""
    with np.errstate(all="ignore"):
        return np.asarray(x, F32) / (F32(temperature) if F32(temperature) > 0 else F32(1))


def greedy(z: np.ndarray) -> int:
    """The lowest id of the maxima; NaN is below everything."""
    return int(np.argmax(z == z[~np.isnan(z)].max(initial=-INFINITY)))


def weights(z: np.ndarray) -> np.ndarray:
    """e (V,) before any filter."""
    m = z[~np.isnan(z)].max(initial=-INFINITY)
    with np.errstate(all="ignore"):
        e = exp_f32(np.where(z == m, F32(0), z - m))
    return np.where(e >= F32(2.0**-UNIT), e, F32(0))


def shares(e: np.ndarray) -> list[int]:
    """q (V,)."""
    return [int(float(v) * 2.0**UNIT) for v in e]


def filtered(e: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """e (V,) with 0 where a filter takes a token away."""
    e = e.copy()
    if top_k > 0:
        e[np.argsort(-e, kind="stable")[top_k:]] = 0
    if F32(top_p) < 1:
        q, order = shares(e), np.argsort(-e, kind="stable")
        limit = int(max(F32(top_p), F32(0)) * F32(2.0**32)) * sum(q) >> 32
        mass, kept = 0, 0
        while kept == 0 or mass < limit:
            mass += q[order[kept]]
            kept += 1
        e[order[kept:]] = 0
    e[e < min(F32(min_p), F32(1))] = 0
    return e


def drawn(e: np.ndarray, seed: int, position: int, sample: int) -> int:
    """The token that the request's word chooses."""
    q = shares(e)
    counter = tuple(np.array(word, np.uint64) for word in (BLOCK & 0xFFFFFFFF, BLOCK >> 32, position, sample))
    high, low = block(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))[:2]
    place = ((int(high) << 32 | int(low)) * sum(q)) >> 64
    token = 0
    while place >= q[token]:
        place -= q[token]
        token += 1
    return token


def sample(
    x: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int, sample: int
) -> tuple[int, np.ndarray]:
    """(token, processed logits (V,)) of penalised logits x (V,)."""
    z = scaled(x, temperature)
    e = weights(z)
    chosen = greedy(z)
    if F32(temperature) > 0:
        e = filtered(e, top_k, top_p, min_p)
        if z[chosen] > -INFINITY:
            chosen = drawn(e, seed, position, sample)
    return chosen, np.where(e > 0, z, -INFINITY)


def log_probabilities(x: np.ndarray) -> np.ndarray:
    """log_softmax of one row, fp32."""
    return softmax.forward(x[None], "float32", log=True)[0]
