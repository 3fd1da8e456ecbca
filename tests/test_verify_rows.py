"""The invariance checks of operations on rows: they hold, and each can fail."""

import pytest
import torch

from repkernels.verify import rows, runner

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(rows, "WIDTHS", (5, 1025))
    monkeypatch.setattr(rows, "LONG", 1300)


@pytest.mark.parametrize("op", rows.OPERATIONS)
def test_results_of_rows_follow_the_row_alone(op):
    for name, check in rows.checks(CPU):
        assert check(op, "float32", CPU) is None, name


def follows_batch(x):
    return {"out": x * x.shape[0]}


def follows_layout(x):
    return {"out": x * (x.stride(1) if x.stride(0) != x.shape[1] else 3)}


def follows_threads(x):
    return {"out": x * torch.get_num_threads()}


@pytest.mark.parametrize(
    ("check", "wrong"),
    [(rows.batches, follows_batch), (rows.layouts, follows_layout), (rows.threads, follows_threads)],
)
def test_what_follows_anything_else_is_found(check, wrong, monkeypatch):
    monkeypatch.setitem(rows.OPERATIONS, "softmax", wrong)
    assert "out: element" in check("softmax", "float32", CPU)


def test_runner_lists_them():
    names = {(check.op, check.name) for check in runner.checks(CPU, "softmax")}
    assert {("softmax", name) for name, _ in rows.checks(CPU)} <= names
