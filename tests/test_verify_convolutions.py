"""The invariance checks of convolutions: they hold, and each can fail."""

import pytest
import torch

from repkernels.verify import convolutions, runner

CPU = torch.device("cpu")


@pytest.fixture
def short(monkeypatch):
    """Few samples; a stride, pixels, groups, a transposed convolution."""
    monkeypatch.setattr(convolutions, "SAMPLES", {"cpu": 4})
    monkeypatch.setattr(convolutions, "SHAPES", convolutions.SHAPES[1::2])


@pytest.mark.parametrize("contract", ["ordered", "fixed16", "fixed24"])
def test_results_follow_the_operands_alone(contract, short):
    for name, check in convolutions.checks(contract, CPU):
        assert check(contract, "float32", CPU) is None, name


def follows_batch(shape, x, weight, contract):
    return torch.nn.functional.conv2d(x, weight, **shape.options) * x.shape[0]


def follows_layout(shape, x, weight, contract):
    return torch.nn.functional.conv2d(x.contiguous(), weight, **shape.options) * x.stride(1)


def follows_threads(shape, x, weight, contract):
    return torch.nn.functional.conv2d(x, weight, **shape.options) * torch.get_num_threads()


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (convolutions.batches, follows_batch),
        (convolutions.layouts, follows_layout),
        (convolutions.threads, follows_threads),
    ],
)
def test_what_follows_anything_else_is_found(check, wrong, monkeypatch):
    monkeypatch.setattr(convolutions, "_convolution", wrong)
    assert "result: element" in check("ordered", "float32", CPU)


def test_runner_lists_them():
    found = {(check.contract, check.name) for check in runner.checks(CPU, "conv")}
    assert {("fixed24", "batches"), ("ordered", "layouts"), ("fixed8", "threads")} <= found
