"""ctc_loss, SPEC.md, section of this name: one label of one sample after the other."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reference import formats
from reference.functions import exp_f32, ln_f32
from reference.sum import tree

NOTHING = np.float32(-np.inf)
F32 = np.float32


def _log_sum(a: Any, b: Any, c: Any) -> Any:
    m = a
    m = b if b > m else m
    m = c if c > m else m
    m = F32(0) if m == NOTHING else m
    parts = exp_f32(np.array([a, b, c], np.float32) - m)
    return F32(m + ln_f32(np.array([(parts[0] + parts[1]) + parts[2]]))[0])


def _walk(x: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """A (T, S) of x (T, C)."""
    found = np.full((len(x), len(labels)), NOTHING)
    for t in range(len(x)):
        for s, label in enumerate(labels):
            if t == 0:
                found[t, s] = x[t, label] if s < 2 else NOTHING
                continue
            b = found[t - 1, s - 1] if s > 0 else NOTHING
            skips = s % 2 == 1 and s > 1 and label != labels[s - 2]
            c = found[t - 1, s - 2] if skips else NOTHING
            found[t, s] = _log_sum(found[t - 1, s], b, c) + x[t, label]
    return found


def ctc_loss(
    x: np.ndarray,
    targets: Sequence[Sequence[int]],
    input_lengths: Sequence[int],
    dtype: str,
    g: np.ndarray | float = 1.0,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """x (T, N, C) -> the result, and the gradient of x for that of the result, g."""
    x = np.asarray(x, np.float32)
    losses, grad = np.zeros(x.shape[1], np.float32), np.zeros(x.shape, np.float32)
    counts = np.array([max(len(y), 1) for y in targets], np.float32)
    with np.errstate(all="ignore"):
        scale = np.broadcast_to(np.asarray(g, np.float32), len(losses))
        if reduction == "mean":
            scale = (scale / F32(len(losses))) / counts
        for n, (y, length) in enumerate(zip(targets, input_lengths, strict=True)):
            labels = [blank]
            for label in y:
                labels += [label, blank]
            own = x[:length, n]
            if length == 0:
                losses[n] = 0 if len(labels) == 1 else np.inf
                continue
            a, b = _walk(own, labels), _walk(own[::-1], labels[::-1])[::-1, ::-1]
            losses[n] = F32(0) - _log_sum(a[-1, -1], a[-1, -2] if len(labels) > 1 else NOTHING, NOTHING)
            both = a + b
            share = exp_f32(np.minimum((both - own[:, labels]) + losses[n], F32(0)))
            share = np.where(both == NOTHING, F32(0), share)
            for c in range(x.shape[2]):
                places = [s for s, label in enumerate(labels) if label == c]
                total = tree(share[:, places].T) if places else F32(0)
                grad[:length, n, c] = (exp_f32(np.minimum(own[:, c], F32(0))) - total) * scale[n]
            if losses[n] == np.inf:
                grad[:length, n] = 0 if zero_infinity else np.nan
        if zero_infinity:
            losses = np.where(losses == np.inf, F32(0), losses)
        result: Any = losses
        if reduction == "mean":
            result = tree(losses / counts) / F32(len(losses))
        elif reduction == "sum":
            result = tree(losses)
    return formats.rounded(np.asarray(result), dtype), formats.rounded(grad, dtype)
