"""The invariance checks of attention: they hold, and each can fail."""

import types

import pytest
import torch

from repkernels.verify import attention, runner

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.mark.parametrize(("contract", "dtype", "form"), [("ordered", "float32", 1), ("fixed16", "bfloat16", 0)])
def test_results_follow_a_query_and_its_keys_alone(contract, dtype, form, monkeypatch):
    monkeypatch.setattr(attention, "LENGTH", {"cpu": 220})
    monkeypatch.setattr(attention, "FORMS", attention.FORMS[form : form + 1])
    for name, check in attention.checks(contract, CPU):
        assert check(contract, dtype, CPU) is None, name


def wrong(factor):
    """The three functions, a part of the query times what they are called with."""

    def result(q, k, v, mask=None, ends=None, **options):
        part = q[..., : v.shape[-1]] + 0 * (k.sum() + v.sum())
        return part * factor(q, k, mask, ends, options)

    return types.SimpleNamespace(
        scaled_dot_product_attention=result,
        varlen_attention=lambda q, k, v, queries, keys, **options: result(q, k, v, None, queries, **options),
        paged_attention=lambda q, k, v, table, ends, lengths, **options: result(
            q, k[:, :, :1], v, None, ends, **options
        ),
    )


@pytest.mark.parametrize(
    ("check", "factor"),
    [
        ("batches", lambda q, k, mask, ends, options: 1 if ends is None else len(ends)),
        ("chunks", lambda q, k, mask, ends, options: q.shape[0] if q.ndim == 3 else q.shape[2]),
        ("pages", lambda q, k, mask, ends, options: k.shape[1] if k.ndim == 4 else 1),
        ("padding", lambda q, k, mask, ends, options: 2 if "first_key" in options else 1),
        ("masks", lambda q, k, mask, ends, options: 1 if mask is None else mask.float().mean()),
        ("gradients", lambda q, k, mask, ends, options: 1 if ends is None else len(ends)),
        ("layouts", lambda q, k, mask, ends, options: q.stride(-1)),
        ("threads", lambda q, k, mask, ends, options: torch.get_num_threads()),
    ],
)
def test_what_follows_anything_else_is_found(check, factor, monkeypatch):
    monkeypatch.setattr(attention, "functional", wrong(factor))
    assert "element [" in dict(attention.checks("ordered", CPU))[check]("ordered", "float32", CPU)


def test_runner_lists_them():
    found = {(check.contract, check.dtype, check.name) for check in runner.checks(CPU, "attention")}
    assert {("fixed24", "float16", "chunks"), ("ordered", "float32", "pages")} <= found
    assert not any(dtype == "float64" for _, dtype, _ in found)
