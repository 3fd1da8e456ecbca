"""Recurrent layers and their gradients, SPEC.md, "Recurrent layers": one layer in one direction.

Arrays hold values of `dtype` (fp32, or a half type widened to fp32). Sequences lie as rows by step, then by sequence.
"""

from typing import NamedTuple

import numpy as np

from reference import formats, matmul, unary
from reference.sum import sum_rows

ONE, ZERO = np.float32(1), np.float32(0)


class Weights(NamedTuple):
    """w_ih (G, in), w_hh (G, out), b_ih and b_hh (G,) or None, w_hr (out, H) or None."""

    w_ih: np.ndarray
    w_hh: np.ndarray
    b_ih: np.ndarray | None = None
    b_hh: np.ndarray | None = None
    w_hr: np.ndarray | None = None


class Run(NamedTuple):
    """What a forward pass gives, and for every step, in the order they were taken, what its gradient reads."""

    y: np.ndarray
    h: np.ndarray
    c: np.ndarray | None
    steps: list[dict[str, np.ndarray]]


def _gates(total: np.ndarray, count: int) -> list[np.ndarray]:
    return np.split(total, count, axis=1)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return unary.forward("sigmoid", x)


def _tanh(x: np.ndarray) -> np.ndarray:
    return unary.forward("tanh", x)


def forward(
    mode: str, x: np.ndarray, batch_sizes: list[int], h: np.ndarray, c: np.ndarray | None, w: Weights, reverse: bool,
    dtype: str, contract: str,
) -> Run:  # fmt: skip
    """mode: "tanh", "relu", "lstm" or "gru". x (rows, in), h (B, out), c (B, H) for lstm."""
    p_all = matmul.linear(x, w.w_ih, w.b_ih, dtype, contract)
    h, c = h.copy(), None if c is None else c.copy()
    y = np.zeros((len(x), h.shape[1]), np.float32)
    starts = np.concatenate([[0], np.cumsum(batch_sizes)])
    order = range(len(batch_sizes))
    steps = []
    for t in reversed(order) if reverse else order:
        rows, n = slice(starts[t], starts[t + 1]), batch_sizes[t]
        p, q = p_all[rows], matmul.linear(h[:n], w.w_hh, w.b_hh, dtype, contract)
        kept: dict[str, np.ndarray] = {"h_before": h[:n].copy()}
        with np.errstate(all="ignore"):
            if mode == "lstm":
                assert c is not None
                i, f, g, o = _gates(p + q, 4)
                kept |= {"i": _sigmoid(i), "f": _sigmoid(f), "g": _tanh(g), "o": _sigmoid(o), "c_before": c[:n].copy()}
                cell = kept["f"] * c[:n] + kept["i"] * kept["g"]
                kept["T"] = _tanh(cell)
                c[:n] = formats.rounded(cell, dtype)
                new = kept["o"] * kept["T"]
            elif mode == "gru":
                p_r, p_z, p_n = _gates(p, 3)
                q_r, q_z, q_n = _gates(q, 3)
                kept |= {"r": _sigmoid(p_r + q_r), "z": _sigmoid(p_z + q_z), "Q_n": q_n}
                kept["n"] = _tanh(p_n + kept["r"] * q_n)
                new = kept["n"] + kept["z"] * (h[:n] - kept["n"])
            else:
                new = _tanh(p + q) if mode == "tanh" else np.where(p + q <= 0, ZERO, p + q)
        new = formats.rounded(new, dtype)
        if w.w_hr is not None:
            kept["full"] = new
            new = matmul.linear(new, w.w_hr, None, dtype, contract)
        h[:n] = y[rows] = kept["h"] = new
        steps.append(kept | {"t": np.array(t)})
    return Run(y, h, c, steps)


def backward(
    mode: str, g: np.ndarray, g_h: np.ndarray, g_c: np.ndarray | None, x: np.ndarray, batch_sizes: list[int],
    run: Run, w: Weights, dtype: str, contract: str,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The gradients of x, h, c and the weights, by name, from those of y, h_n and c_n, under the gradient contract."""
    k, starts = g_h.copy(), np.concatenate([[0], np.cumsum(batch_sizes)])
    s = np.zeros((len(k), 0), np.float32) if g_c is None else g_c.copy()
    u = np.zeros_like(k)
    width = len(w.w_hh)
    d_p, d_q = (np.zeros((len(x), width), np.float32) for _ in range(2))
    before = np.zeros((len(x), k.shape[1]), np.float32)
    e_all = np.zeros((len(x), k.shape[1]), np.float32)
    full = np.zeros((len(x), 0 if w.w_hr is None else w.w_hr.shape[1]), np.float32)
    for kept in reversed(run.steps):
        t = int(kept["t"])
        rows, n = slice(starts[t], starts[t + 1]), batch_sizes[t]
        before[rows] = kept["h_before"]
        with np.errstate(all="ignore"):
            d = g[rows] + (u[:n] + k[:n] if mode == "gru" else k[:n])
            if w.w_hr is not None:
                e_all[rows], full[rows] = formats.rounded(d, dtype), kept["full"]
                d = matmul.matmul(e_all[rows], w.w_hr, dtype, contract)
            of_p, of_q = _step_gradient(mode, d, kept, s[:n], u[:n])
        d_p[rows], d_q[rows] = formats.rounded(of_p, dtype), formats.rounded(of_q, dtype)
        k[:n] = matmul.matmul(d_q[rows], w.w_hh, dtype, contract)
    grads = {
        "x": matmul.matmul(d_p, w.w_ih, dtype, contract),
        "h": formats.rounded(u + k, dtype) if mode == "gru" else k,
        "w_ih": matmul.matmul(d_p.T, x, dtype, contract),
        "w_hh": matmul.matmul(d_q.T, before, dtype, contract),
        "b_ih": sum_rows(d_p, dtype),
        "b_hh": sum_rows(d_q, dtype),
    }
    if mode == "lstm":
        grads["c"] = formats.rounded(s, dtype)
    if w.w_hr is not None:
        grads["w_hr"] = matmul.matmul(e_all.T, full, dtype, contract)
    return grads


def _step_gradient(
    mode: str, d: np.ndarray, kept: dict[str, np.ndarray], s: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of P and Q of one step, not yet rounded to the type; s and u are changed in place."""
    if mode == "lstm":
        i, f, g, o, big_t = (kept[name] for name in "ifgoT")
        a = s + (d * o) * (ONE - big_t * big_t)
        of_p = np.concatenate(
            [
                (a * g) * (i * (ONE - i)),
                (a * kept["c_before"]) * (f * (ONE - f)),
                (a * i) * (ONE - g * g),
                (d * big_t) * (o * (ONE - o)),
            ],
            1,
        )
        s[:] = a * f
        return of_p, of_p
    if mode == "gru":
        r, z, n = (kept[name] for name in "rzn")
        d_n = (d * (ONE - z)) * (ONE - n * n)
        d_r = (d_n * kept["Q_n"]) * (r * (ONE - r))
        d_z = (d * (kept["h_before"] - n)) * (z * (ONE - z))
        u[:] = d * z
        return np.concatenate([d_r, d_z, d_n], 1), np.concatenate([d_r, d_z, d_n * r], 1)
    h = kept["h"]
    of_p = d * (ONE - h * h) if mode == "tanh" else np.where(h <= 0, ZERO, d)
    return of_p, of_p
