"""Distances, losses of margins and likelihoods, SPEC.md, "Distances and their losses": the elements, in fp32."""

import math

import numpy as np

from reference import unary
from reference.sum import sum_rows

F = np.float32
ZERO, ONE = F(0), F(1)


def positive(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, x, ZERO)


def total(x: np.ndarray) -> np.ndarray:
    """SUM along the last axis."""
    return sum_rows(x.reshape(-1, x.shape[-1]).T, "float32").reshape(x.shape[:-1])


def pairwise_distance(x1: np.ndarray, x2: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    d = (x1 - x2) + F(eps)
    return np.sqrt(total(d * d))


def cosine_similarity(x1: np.ndarray, x2: np.ndarray, eps: float = 1e-8) -> np.ndarray:
    a, b = (x / np.maximum(np.sqrt(total(x * x)), F(eps))[..., None] for x in (x1, x2))
    return total(a * b)


def hinge_embedding_loss(x: np.ndarray, y: np.ndarray, margin: float) -> np.ndarray:
    return np.where(y != 1, positive(-x + F(margin)), ZERO) + np.where(y != -1, x, ZERO)


def margin_ranking_loss(x1: np.ndarray, x2: np.ndarray, y: np.ndarray, margin: float) -> np.ndarray:
    return positive((-y * (x1 - x2)) + F(margin))


def soft_margin_loss(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    v = -y * x
    return np.where(v > 20, v, unary.forward("softplus", v))


def multilabel_soft_margin_loss(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    left, right = (-unary.forward("softplus", v) for v in (-x, x))
    each = -((y * left) + ((-y + ONE) * right)) * weight
    return total(each) / F(x.shape[-1])


def multi_margin_loss(x: np.ndarray, t: np.ndarray, p: int, margin: float) -> np.ndarray:
    v = positive((-x[np.arange(len(x)), t] + F(margin))[:, None] + x)
    v = v * v if p == 2 else v
    v[np.arange(len(x)), t] = ZERO
    return total(v) / F(x.shape[1])


def multilabel_margin_loss(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    rows, classes = x.shape
    each = np.zeros((rows, classes, classes), F)
    for n in range(rows):
        targets = t[n][: np.argmax(np.append(t[n], -1) < 0)]
        others = [j for j in range(classes) if j not in targets]
        for k, target in enumerate(targets):
            each[n, k, others] = positive((-x[n, target] + ONE) + x[n, others])
    return total(each.reshape(rows, -1)) / F(classes)


def cosine_embedding_loss(x1: np.ndarray, x2: np.ndarray, y: np.ndarray, margin: float) -> np.ndarray:
    a, b = (total(v * v) + F(1e-12) for v in (x1, x2))
    c = total(x1 * x2) / np.sqrt(a * b)
    return np.where(y == 1, -c + ONE, positive(c + F(-margin)))


def triplet_margin_loss(a: np.ndarray, p: np.ndarray, n: np.ndarray, margin: float, swap: bool) -> np.ndarray:
    far = pairwise_distance(a, n)
    far = np.minimum(far, pairwise_distance(p, n)) if swap else far
    return positive((pairwise_distance(a, p) + F(margin)) - far)


def poisson_nll_loss(x: np.ndarray, y: np.ndarray, log_input: bool, full: bool, eps: float) -> np.ndarray:
    loss = unary.forward("exp", x) - y * x if log_input else x - y * unary.forward("log", x + F(eps))
    if full:
        safe = np.where(y > 1, y, ONE)
        more = (safe * unary.forward("log", safe) - safe) + unary.forward("log", safe * F(2 * math.pi)) * F(0.5)
        loss = np.where(y > 1, loss + more, loss)
    return loss


def gaussian_nll_loss(x: np.ndarray, y: np.ndarray, var: np.ndarray, full: bool, eps: float) -> np.ndarray:
    v, d = np.maximum(var, F(eps)), x - y
    loss = (unary.forward("log", v) + (d * d) / v) * F(0.5)
    return loss + F(0.5 * math.log(2 * math.pi)) if full else loss
