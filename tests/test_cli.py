"""The command line: names, errors before anything runs, and what a wheel holds."""

import re
import runpy
import subprocess
import sys
import tomllib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from repkernels import __version__, random
from repkernels.cli import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_help_names_every_command() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    for command in ("verify", "demo", "bench"):
        assert command in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--device", "tpu:0"],
        ["verify", "--op", "no_such_operation"],
        ["verify", "--contract", "fixed12"],
        ["demo", "--contract", "fixed12"],
        ["demo", "--device", "nonsense"],
        ["demo", "--device", "cuda:99"],
        ["frobnicate"],
    ],
)
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output


def test_module_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "repkernels", "verify", "--op", "permutation", "--device", "cpu"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hold" in done.stdout


def test_benchmarks_are_found_in_a_checkout() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "repkernels", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


def test_the_wheel_holds_every_package_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    setuptools = pytest.importorskip("setuptools")
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    packages = {"repkernels.bench", "repkernels.bench.networks", "repkernels.verify.golden"} | {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "repkernels").rglob("__init__.py")
    }
    assert set(given["packages"]) == packages


def test_examples_of_the_readme_run() -> None:
    example, products, *ways_in = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names: dict[str, Any] = {name: torch.ones(4, 4) for name in ("a", "b", "weight")}
    state = random.get_state()
    try:
        exec(example + products, names)
        layer4 = torch.nn.Sequential(torch.nn.Linear(4, 4))
        model = torch.nn.Sequential(OrderedDict(layer4=layer4, fc=torch.nn.Linear(4, 2)))
        names |= {"model": model, "x": torch.ones(2, 4), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        exec("".join(ways_in), names)
    finally:
        random.set_state(state)
    assert torch.equal(names["c"], torch.full((4, 4), 4.0))
    assert torch.equal(names["d"], names["c"])


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == __version__


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--op", "relu", "--contract", "ordered"],
        ["verify", "--op", "digest", "--json", f"{__file__}/no.json"],
        ["demo", "--contract", "native"],
        ["demo", "--json", f"{__file__}/no.json"],
        ["bench", "matmul", "--device", "cpu", "--json", f"{__file__}/no.json"],
    ],
)
def test_what_proves_nothing_or_can_not_be_kept_is_refused(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Invalid value" in done.output
    assert "Traceback" not in done.output
