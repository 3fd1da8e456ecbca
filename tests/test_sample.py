"""Sampling: tokens against the reference on both backends, rows alone and in a batch, frequencies, errors."""

import numpy as np
import pytest
import torch

from reference import sample as reference
from repkernels.ops import sample as ops
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


@each_backend
def test_penalties(backend):
    kernels, x = backend.module("sample"), rows(torch.bfloat16)[:5, :40]
    prompt = torch.randint(-1, 40, (5, 8), generator=torch.Generator().manual_seed(0))
    output = torch.randint(-1, 40, (5, 30), generator=torch.Generator().manual_seed(1))
    numbers = (1.3, 0.7, 1.0, 0.0, 2.0), (0.3, 0.0, -0.2, 1.7, 0.1), (0.0, 0.5, 1.1, 0.0, -2.0)
    wanted = [
        reference.penalised(row, p, o, *n)
        for row, p, o, *n in zip(values(x), prompt.tolist(), output.tolist(), *numbers, strict=True)
    ]
    counts = ops._counts(x, prompt, output).to(backend.device)
    found = kernels.penalised(x.to(backend.device), counts, *(torch.tensor(n, device=backend.device) for n in numbers))
    assert_same_bits(found.cpu(), tensor(np.stack(wanted), torch.float32))


@each_device
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_a_row_alone_is_the_row_in_the_batch(device, mode):
    x = rows().to(device)
    temperature, top_k, top_p, min_p = parameters(device)
    history = torch.arange(len(x), device=device)[:, None] * 3
    keys = {name: torch.arange(len(x), device=device) + 5 for name in ("seeds", "positions", "samples")}
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, **keys}
    options |= {"presence_penalty": min_p * 2, "frequency_penalty": -min_p, "prompt": history, "output": history + 2}
    together = sample(x, logprobs=3, logprobs_mode=mode, **options)
    assert together.tokens.dtype == torch.int64 and together.top_tokens.shape == (len(x), 3)
    logits = x if mode == "raw_logprobs" else None
    for i in range(len(x)):
        alone = sample(x[i : i + 1], logprobs=3, logprobs_mode=mode, **{k: v[i : i + 1] for k, v in options.items()})
        for one, all_ in zip(alone, together, strict=True):
            assert_same_bits(one, all_[i : i + 1])
        if logits is not None:
            everything = tensor(reference.log_probabilities(values(x[i])), torch.float32)
            assert_same_bits(together.logprobs[i].cpu(), everything[together.tokens[i]])
            assert_same_bits(together.top_logprobs[i].cpu(), everything[together.top_tokens[i].cpu()])


@each_device
def test_numbers_are_tensors_and_defaults_change_nothing(device):
    x = rows().to(device)
    full = sample(
        x, temperature=torch.ones((), device=device), top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
        frequency_penalty=0, presence_penalty=0, prompt=torch.zeros(len(x), 1, dtype=torch.int32, device=device),
        seeds=torch.full((len(x),), -1, device=device), logprobs=None,
    )  # fmt: skip
    assert_same_bits(full.tokens, sample(x, seeds=2**64 - 1).tokens)
    assert full.logprobs is None
    wide = torch.stack([x, x], 2)[:, :, 0]
    assert_same_bits(full.tokens, sample(wide, seeds=-1).tokens)
    assert sample(x[:0]).tokens.shape == (0,)


def test_frequencies():
    """Chi-squared of 20000 draws against the softmax, of one request's positions, samples, and of many seeds."""
    x = torch.tensor([2.0, 0.0, 1.0, -1.0, 1.0, -3.0, 0.5])
    count = 20000
    for key in ("seeds", "positions", "samples"):
        drawn = sample(x.expand(count, 7), **{key: torch.arange(count)}, logprobs=None).tokens
        expectation = torch.softmax(x.double(), 0) * count
        found = drawn.bincount(minlength=7)
        assert ((found - expectation) ** 2 / expectation).sum() < 24  # 6 degrees of freedom: p = 5e-4
    kept = sample(x.expand(count, 7), seeds=torch.arange(count), top_p=0.8, min_p=0.1, logprobs=None).tokens
    assert kept.unique().tolist() == [0, 2, 4]


def test_what_compilers_see():
    x, keys = rows()[:2], [torch.tensor([3, 4])] * 3
    hot = torch.ones(2)
    for op, arguments in (
        (ops._op, (x, hot, None, hot, None, *keys)),
        (ops._penalised_op, (x, torch.zeros_like(x, dtype=torch.int32), hot, hot, hot)),
        (ops._scaled_op, (x, hot, torch.ones_like(x))),
        (ops._chosen_op, (x, torch.zeros(2, 3, dtype=torch.int64))),
    ):
        torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"temperature": -1.0}, ValueError, "temperature"),
        ({"temperature": torch.tensor([1.0, float("nan")])}, ValueError, "temperature"),
        ({"temperature": torch.ones(3)}, ValueError, "temperature"),
        ({"top_p": 1.5}, ValueError, "top_p"),
        ({"top_k": 1.5}, TypeError, "top_k"),
        ({"top_k": torch.ones(2)}, TypeError, "top_k"),
        ({"top_k": -1}, ValueError, "top_k"),
        ({"min_p": "much"}, TypeError, "min_p"),
        ({"positions": -1}, ValueError, "positions"),
        ({"samples": 2**32}, ValueError, "samples"),
        ({"repetition_penalty": -0.5}, ValueError, "repetition_penalty"),
        ({"prompt": torch.ones(2, 1)}, TypeError, "prompt"),
        ({"output": torch.full((2, 1), 9)}, ValueError, "output"),
        ({"output": torch.ones(3, 1, dtype=torch.int64)}, ValueError, "output"),
        ({"logprobs": 9}, ValueError, "logprobs"),
        ({"logprobs_mode": "some"}, ValueError, "logprobs_mode"),
    ],
)
def test_errors(options, error, text):
    with pytest.raises(error, match=f"^{text}"):
        sample(torch.zeros(2, 8), **options)


def test_errors_of_logits():
    for logits, error in (
        (torch.zeros(8), ValueError),
        (torch.zeros(2, 0), ValueError),
        (torch.zeros(2, 8, dtype=torch.float64), NotImplementedError),
        ([1.0], TypeError),
    ):
        with pytest.raises(error, match="^logits"):
            sample(logits)
