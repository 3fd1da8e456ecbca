"""The benchmarks: what is listed, how times become rows, and that one failure costs nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import bench.cli
from bench import machine, report
from bench.matmul import LAYERS, ROWS, SQUARES
from bench.measure import Failed, Time, measure
from bench.registry import REGISTRY, Run, Variant, Work

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def work(*variants: Variant, copies: int = 1) -> Work:
    return Work("w", "g", lambda: None, list(variants), "base", 2 * 10**12, 10**9, copies, {"M": 1, "N": 1, "K": 1})


def nothing(operands: Any) -> Run:
    return lambda i: None


def broken(operands: Any) -> Run:
    raise RuntimeError("no such kernel\nand more")


def breaks_when_run(operands: Any) -> Run:
    def run(i: int) -> None:
        if i:
            raise RuntimeError("late")

    return run


def test_a_gpu_measures_squares_and_layers_under_every_contract() -> None:
    works = list(REGISTRY["matmul"](GPU, False))
    names = {w.name for w in works}
    assert {f"square {n} {kind}" for n in SQUARES for kind in ("bfloat16", "float32")} <= names
    assert {f"{layer} M={M} bfloat16" for layer in LAYERS for M in ROWS} <= names
    labels = {v.label for w in works for v in w.variants}
    assert {"native", "ordered", "fixed8", "fixed16", "fixed24", "fixed32"} <= labels
    assert {"cuBLAS bf16", "cuBLAS fp32", "cuBLAS TF32", "cuBLAS int8"} <= labels


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("quick", [True, False])
def test_every_baseline_is_one_of_the_variants(device: torch.device, quick: bool) -> None:
    works = list(REGISTRY["matmul"](device, quick))
    assert len({w.name for w in works}) == len(works)
    for w in works:
        labels = [v.label for v in w.variants]
        assert w.baseline in labels
        assert len(set(labels)) == len(labels)


def test_few_rows_go_round_more_weights_than_a_cache_holds() -> None:
    for w in REGISTRY["matmul"](GPU, False):
        if 0 < w.sizes["M"] <= 256 and not w.group.startswith("square"):
            assert w.copies * w.sizes["N"] * w.sizes["K"] * 2 >= 256 << 20


def test_a_failing_variant_is_reported_and_costs_the_others_nothing() -> None:
    times = measure(
        work(Variant("base", nothing), Variant("bad", broken), Variant("late", breaks_when_run), copies=2), CPU, 5
    )
    assert isinstance(times["base"], Time)
    assert times["base"].repetitions == 5
    assert times["bad"] == Failed("RuntimeError: no such kernel")
    assert isinstance(times["late"], Failed)


def test_rows_carry_medians_rates_and_ratios() -> None:
    times = {"base": Time(2.0, 1.0, 3.0, 5, True), "ours": Time(1.0, 1.0, 1.0, 5, True), "bad": Failed("E: x")}
    base, ours, bad = report.as_rows(work(Variant("base", nothing)), times)
    assert (base["ratio"], ours["ratio"]) == (1.0, 2.0)
    assert (ours["teraops"], ours["gigabytes_per_second"], ours["microseconds"]) == (2.0, 1.0, 1e6)
    assert bad["error"] == "E: x"


def test_without_its_baseline_a_row_has_no_ratio() -> None:
    times = {"base": Failed("E: x"), "ours": Time(1.0, 1.0, 1.0, 5, True)}
    assert report.as_rows(work(Variant("base", nothing)), times)[1]["ratio"] is None


def test_a_device_is_described_without_the_name_of_its_host() -> None:
    import platform

    about = machine.describe(CPU)
    assert about["torch"] == torch.__version__
    assert about["commit"]
    assert platform.node() not in json.dumps(about).split('"')


def test_names_of_devices_become_names_of_files() -> None:
    assert machine.slug("NVIDIA H200") == "nvidia-h200"
    assert machine.slug("AMD EPYC 9B14 (x2)") == "amd-epyc-9b14-x2"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [work(Variant("base", nothing), Variant("bad", broken))]
    monkeypatch.setitem(REGISTRY, "small", lambda device, quick: works)


def test_what_could_be_measured_is_kept_though_something_failed(small: None, tmp_path: Path) -> None:
    file = tmp_path / "results" / "small.json"
    done = CliRunner().invoke(bench.cli.app, ["small", "--device", "cpu", "--quick", "--json", str(file)])
    assert done.exit_code == 1
    assert "no such kernel" in done.output
    rows = json.loads(file.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["base", "bad"]
    assert rows[0]["ratio"] == 1.0


@pytest.mark.parametrize("arguments", [["unknown"], ["small", "--filter", "no such work"]])
def test_bad_arguments_are_refused(small: None, arguments: list[str]) -> None:
    assert CliRunner().invoke(bench.cli.app, arguments).exit_code == 2


def test_only_full_runs_are_recorded_among_the_results(
    small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench.cli, "recorded", lambda name, device: tmp_path / f"{name}.json")
    CliRunner().invoke(bench.cli.app, ["small", "--device", "cpu", "--quick"])
    CliRunner().invoke(bench.cli.app, ["small", "--device", "cpu", "--filter", "w"])
    assert not (tmp_path / "small.json").exists()
    CliRunner().invoke(bench.cli.app, ["small", "--device", "cpu"])
    assert (tmp_path / "small.json").exists()


def test_plot(tmp_path: Path) -> None:
    rows = []
    for name, size in (("square", 512), ("square", 1024), ("qkv", 16)):
        for variant, ratio in (("base", 1.0), ("ours", 0.9)):
            rows.append({"group": f"{name} float32", "N": size, "M": size, "variant": variant, "baseline": "base",
                         "ratio": ratio, "teraops": 100 * ratio})  # fmt: skip
    from rich.console import Console

    report.plot(tmp_path / "plot.png", {"device": "d", "torch": "t", "commit": "c"}, rows, Console())
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_a_real_product_is_measured() -> None:
    (w,) = [w for w in REGISTRY["matmul"](CPU, True) if w.name == "square 256 float32"]
    times = measure(w, CPU, rounds=3)
    assert all(isinstance(time, Time) for time in times.values()), times


def test_a_product_of_kept_digits_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPU's kernels, interpreted where there is no GPU; a's digits are not made again."""
    from bench import matmul as benchmark
    from repkernels.kernels import matmul as kernels

    device = GPU if torch.cuda.is_available() else CPU
    monkeypatch.setattr(benchmark, "backend", lambda op, kind: kernels)
    operands = benchmark.drawn(device, torch.bfloat16, 96, 32, 64, 2, weights=False)
    run = benchmark.both_kept("fixed16", operands)
    for i, b in enumerate(operands.bs):
        assert torch.equal(run(i)[0], kernels.matmul(operands.a[None], b[None], None, "fixed16")[0])
    operands.a.zero_()
    assert run(0).count_nonzero() > 0
