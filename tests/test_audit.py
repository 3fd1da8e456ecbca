"""audit(): what ran, its verdicts, and the command line's exit code."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import repkernels
from repkernels import audit, reproducible
from repkernels.cli import app
from tests.support import assert_same_bits, randn

X = randn(5, 8, seed=1)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def test_plain_torch_is_not_reproducible_and_says_where() -> None:
    report = audit(model(), X)
    assert not report.reproducible
    found = {(row.operation, row.module, row.direction): row for row in report.refused}
    row = found["aten::addmm", "Sequential.3", "forward"]
    assert row.count == 1 and "order" in row.reason
    assert row.peak is not None and row.peak > 1
    assert ("aten::mm", "Sequential.3", "backward") in found
    assert ("aten::native_batch_norm_backward", "Sequential.1", "backward") in found
    safe = {row.operation for row in report.rows if row.verdict == "safe"}
    assert {"aten::add_.Tensor", "aten::threshold_backward"} <= safe


def test_inside_of_reproducible_and_converted_it_is_ours() -> None:
    plain = model()
    with reproducible():
        inside = audit(plain, X)
    converted = audit(repkernels.convert(plain), X)
    for report in (inside, converted):
        assert report.reproducible
        assert any(row.operation == "repkernels::matmul" and row.direction == "backward" for row in report.rows)
    with reproducible():
        assert not audit(torch.linalg.svd, X, backward=False).reproducible


def test_the_model_is_left_as_it_was() -> None:
    plain = model()
    plain[0].weight.grad = torch.ones(8, 8)
    mean = plain[1].running_mean.clone()
    state = repkernels.random.get_state()
    report = audit(plain, X, loss=lambda y: y.square().sum())
    assert any(row.operation.startswith("aten::pow") for row in report.rows)
    assert_same_bits(plain[1].running_mean, mean)
    assert_same_bits(plain[0].weight.grad, torch.ones(8, 8))
    assert plain[3].weight.grad is None
    assert repkernels.random.get_state() == state
    assert all(row.direction == "forward" for row in audit(plain, X, backward=False).rows)


def test_peak_shows_outliers() -> None:
    x = torch.ones(2, 100)
    x[1, 3] = 1000.0
    row = next(row for row in audit(torch.mm, x, torch.ones(100, 2)).rows if row.operation == "aten::mm")
    assert row.peak == pytest.approx(10.0, rel=1e-3)


def test_report_prints_and_is_json() -> None:
    report = audit(model(), X)
    assert "aten::addmm" in str(report)
    written = json.loads(json.dumps(report.as_json()))
    assert written["reproducible"] is False
    assert written["counts"]["not reproducible"] == sum(row.count for row in report.refused)


SCRIPT = """
import sys, torch
assert sys.argv[1:] == ["--json", "9"], sys.argv
print((torch.arange(6.).view(2, 3) @ torch.ones(3, 2)).sum())
"""


def test_command_line(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "rows.json"
    script.write_text(SCRIPT)
    plain = CliRunner().invoke(app, ["audit", "--json", str(out), str(script), "--json", "9"])
    assert plain.exit_code == 1, plain.output
    assert json.loads(out.read_text())["reproducible"] is False
    inside = CliRunner().invoke(app, ["audit", "--reproducible", str(script), "--json", "9"])
    assert inside.exit_code == 0, inside.output
    broken = CliRunner().invoke(app, ["audit", str(tmp_path / "none.py")])
    assert broken.exit_code == 2
    script.write_text("raise SystemExit(3)")
    assert CliRunner().invoke(app, ["audit", str(script)]).exit_code == 2
