"""The golden catalogue, its two implementations of the inputs, and `repkernels verify`."""

import base64
import json

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from reference import golden as reference_golden
from reference import inputs as reference_inputs
from repkernels.contract import NAMES
from repkernels.verify import catalogue, compare, golden, inputs, invariance, report, runner
from tests.support import DEVICES

CPU = torch.device("cpu")
CASES = list(catalogue.cases())
OPERATIONS = sorted({case["op"] for case in CASES})


@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    app.command()(report.verify_command)
    return app


@pytest.mark.parametrize("dtype", inputs.FORMATS)
@pytest.mark.parametrize("kind", inputs.KINDS)
def test_inputs_have_two_implementations(kind, dtype):
    for stream, shape in enumerate([(5, 37), (37, 3), (64,), (2, 0, 3)]):
        ours = inputs.operand(kind, dtype, shape, 7, stream)
        theirs = reference_inputs.operand(kind, dtype, shape, 7, stream)
        assert ours.shape == theirs.shape
        assert golden_result(theirs, dtype)["digest"] == compare.digest(ours)


def golden_result(values, dtype):
    return reference_golden.result(values, dtype)


def test_kinds_are_the_same():
    assert set(inputs.KINDS) == set(reference_inputs.KINDS)


def test_targets():
    assert inputs.targets(10, 99, 5, 1).tolist() == reference_inputs.targets(10, 99, 5, 1).tolist()


@pytest.mark.parametrize("kind", ["subnormal", "tiny", "huge", "zeros", "nonfinite", "extremes"])
def test_kinds_are_what_they_say(kind):
    x = reference_inputs.operand(kind, "float32", (20, 50), 0, 0)
    size = np.abs(x)
    assert {
        "subnormal": ((size > 0) & (size < 2.0**-126)).sum() > 300,
        "tiny": size.max() < 2.0**-63,
        "huge": size.min() >= 2.0**61,
        "zeros": not x[0].any() and np.signbit(x[0]).any() and (x == 0).sum() > 600,
        "nonfinite": np.isnan(x).any() and np.isinf(x).any() and np.isfinite(x).mean() > 0.9,
        "extremes": size.max() > 2.0**102 and size.min() < 2.0**-101,
    }[kind]


def test_catalogue_has_every_contract_and_kind():
    found = {(case["contract"], case["dtype"]) for case in CASES if case["op"] == "matmul"}
    assert {contract for contract, _ in found} == set(NAMES) - {"native"}
    assert ("ordered", "float64") in found
    assert {case["kind"] for case in CASES if case["op"] == "matmul"} >= {
        "ordinary", "spread", "subnormal", "tiny", "huge", "zeros", "nonfinite", "extremes", "ties", "constant",
    }  # fmt: skip
    assert {"matmul", "linear", "sum", "cross_entropy", "relu", "sgd", "digest", "init", "permutation"} <= set(
        runner.operations()
    )
    for network in ("mlp", "cnn"):
        assert set(catalogue.demo(network)) == {"initial", "trained", "logits"}


def test_catalogue_keeps_bits_of_all_but_the_largest():
    kept = [result for case in CASES for result in case["results"].values() if "shape" in result]
    for result in kept:
        assert ("bits" in result) == (np.prod(result["shape"]) <= reference_golden.KEPT)
    # 558 of 6625: long sums, long rows, thousands of arguments of a function, attention of several segments.
    assert len([result for result in kept if "bits" not in result]) < len(kept) / 10


def test_results_reach_what_they_are_for():
    """Subnormal, overflowing, zero, non-finite and ordinary results do occur."""

    def values(kind):
        for case in CASES:
            if case["op"] == "matmul" and case["dtype"] == "float32" and case["kind"] == kind:
                yield np.frombuffer(base64.b64decode(case["results"]["out"]["bits"]), "<f4")

    assert all((np.abs(x) < 2.0**-126).mean() > 0.4 for x in values("tiny"))
    assert all(0 < np.isinf(x).sum() < x.size for x in values("huge"))
    assert all(np.isnan(x).any() and np.isinf(x).any() and np.isfinite(x).sum() > 50 for x in values("nonfinite"))
    assert all((x == 0).any() and (x != 0).any() for x in values("zeros"))


@pytest.mark.parametrize("op", OPERATIONS)
def test_catalogue_is_what_the_reference_computes(op):
    """A sample of each operation; `python -m reference.golden --check` compares all."""
    sample = [case for case in CASES if case["op"] == op and case.get("kind") != "constant"]
    for case in sample[:: max(1, len(sample) // 12)]:
        fresh = reference_golden.completed({key: value for key, value in case.items() if key != "results"})
        assert json.loads(json.dumps(fresh)) == case


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", runner.operations())
def test_golden_cases(op, device):
    selected = [check for check in runner.checks(torch.device(device), op) if check.name not in INVARIANCES]
    assert selected
    assert [
        f"{o.check.contract} {o.check.dtype} {o.check.name}: {o.message}" for o in runner.run(selected) if not o.passed
    ] == []


INVARIANCES = {"batches", "layouts", "prepared", "threads", "configurations", "engines"}
INVARIANCES |= {"chunks", "pages", "padding", "masks", "gradients", "tiles"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("contract", NAMES)
def test_invariances(contract, device):
    selected = [c for c in runner.checks(torch.device(device), "matmul", contract) if c.name in INVARIANCES]
    assert bool(selected) == (contract != "native" or device == "cuda")
    assert [f"{o.check.dtype} {o.check.name}: {o.message}" for o in runner.run(selected) if not o.passed] == []


def test_difference_names_the_first_element_and_both_patterns():
    x = torch.tensor([[1.0, 2.0], [3.0, -0.0]])
    y = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert compare.difference(x, x.clone()) is None
    assert compare.difference(x, y) == "element [1, 1] is 80000000 instead of 00000000; 1 of 4 differ"
    assert compare.difference(x.bfloat16(), y.bfloat16()) == "element [1, 1] is 8000 instead of 0000; 1 of 4 differ"
    assert "float32 (2, 2) instead of" in compare.difference(x, y.double())
    nan = torch.tensor([float("nan"), 1.0])
    assert compare.difference(nan, -nan * torch.tensor([1.0, -1.0])) is None


def test_a_wrong_bit_is_found(monkeypatch):
    case = next(case for case in CASES if case["op"] == "matmul" and case["kind"] == "ordinary")

    def wrong(case, device):
        out = right(case, device)["out"]
        out.view(torch.int32)[2, 3] ^= 1
        return {"out": out}

    right = golden.COMPUTE["matmul"]
    assert golden.differing(case, CPU) is None
    monkeypatch.setitem(golden.COMPUTE, "matmul", wrong)
    assert golden.differing(case, CPU).startswith("out: element [2, 3] is ")


def test_a_row_that_depends_on_its_batch_is_found(monkeypatch):
    def batched(a, b, contract):
        out = a @ b
        return out if a.ndim > 2 or len(a) < 1000 else out * (1 + 2**-20)

    monkeypatch.setattr(invariance, "_matmul", batched)
    assert invariance.batches("ordered", "float32", CPU).startswith("row 0 alone: element [0] is ")


def test_command_passes(app, tmp_path):
    path = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["--device", "cpu", "--op", "permutation", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "checks hold" in result.output
    written = json.loads(path.read_text())
    assert written["passed"]
    assert written["device"] == "cpu"
    assert written["torch"] == torch.__version__
    assert all(entry["passed"] and entry["op"] == "permutation" for entry in written["results"])


def test_a_sample_has_every_operation_and_contract():
    found = runner.checks(CPU)
    sampled = runner.sample(found, 17)
    assert {(c.op, c.contract) for c in sampled} == {(c.op, c.contract) for c in found}
    assert len(found) / 17 < len(sampled) < len(found) / 5
    assert runner.sample(found, 1) == found


def test_command_says_that_it_took_a_sample(app, tmp_path):
    path = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["--op", "permutation", "--device", "cpu", "--sample", "2", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "1 in 2" in result.output
    assert json.loads(path.read_text())["sample"] == 2


def test_command_fails_with_the_first_difference(app, tmp_path, monkeypatch):
    monkeypatch.setitem(golden.COMPUTE, "permutation", lambda case, device: {"out": torch.arange(case["shapes"][0][0])})
    path = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["--device", "cpu", "--op", "permutation", "--json", str(path)])
    assert result.exit_code == 1
    assert "instead of" in result.output
    assert not json.loads(path.read_text())["passed"]


def test_a_check_that_raises_has_failed(monkeypatch):
    def broken(case, device):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(golden.COMPUTE, "permutation", broken)
    outcomes = list(runner.run(runner.checks(CPU, "permutation")))
    assert {outcome.message for outcome in outcomes} == {"RuntimeError: no such kernel"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--op", "transform"], "--op"), (["--contract", "fixed12"], "--contract"), (["--device", "meta"], "--device")],
)
def test_command_refuses(app, arguments, named):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert named in result.output
