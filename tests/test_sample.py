"""Sampling: tokens against the reference on both backends, rows alone and in a batch, frequencies, errors."""

import numpy as np
import pytest
import torch

from reference import sample as reference
from repkernels.sampling import sample
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, randn, tensor, values

each_device = pytest.mark.parametrize("device", DEVICES)
CONFIGURATIONS = (
    # temperature, top_k, top_p, min_p
    (0.0, 3, 0.5, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (0.3, 40, 0.95, 0.01),
    (5.0, 0, 1.0, 0.5),
    (1.0, 1, 0.0, 1.0),
    (1e-40, 300, 0.3, 0.0),
)


def rows(dtype=torch.float32, size=150):
    """Rows of logits, one for each configuration: ordinary ones, ties, infinities, NaN, nothing to draw."""
    x = randn(len(CONFIGURATIONS), size) * 4
    x[1] = x[1].round()
    x[2, :90] = 1.5
    x[3] = 0.0
    x[3, ::2] = -0.0
    x[4, 3], x[4, 5:60] = float("nan"), -float("inf")
    x[6] = -float("inf")
    x[6, 0] = float("nan")
    return x.to(dtype)


def parameters(device):
    t, k, p, least = zip(*CONFIGURATIONS, strict=True)
    numbers = [torch.tensor(v, dtype=torch.float32, device=device) for v in (t, p, least)]
    return numbers[0], torch.tensor(k, device=device), numbers[1], numbers[2]


def expected(x, seeds, positions, samples):
    found = [
        reference.sample(row, *configuration, *key)
        for row, configuration, *key in zip(values(x), CONFIGURATIONS, seeds, positions, samples, strict=True)
    ]
    return torch.tensor([token for token, _ in found]), np.stack([z for _, z in found])


@each_backend
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_tokens(backend, dtype, monkeypatch):
    kernels, x = backend.module("sample"), rows(dtype)
    if backend.package == "kernels" and dtype == torch.float32:
        monkeypatch.setattr(kernels, "CHUNK", 64)
    temperature, top_k, top_p, min_p = parameters(backend.device)
    for draw in range(2):
        keys = (
            [(-1) ** draw * (2**63 - 1 - i) for i in range(len(x))],
            [7 * draw + i for i in range(len(x))],
            [draw] * len(x),
        )
        tokens, processed = expected(x, *keys)
        on_device = [torch.tensor(key, device=backend.device) for key in keys]
        logits = x.to(backend.device)
        found, e = kernels.sample(logits, temperature, top_k, top_p, min_p, *on_device)
        assert_same_bits(found.cpu(), tokens)
        assert_same_bits(kernels.scaled_logits(logits, temperature, e).cpu(), tensor(processed, torch.float32))
