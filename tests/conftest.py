"""Test set-up: where there is no GPU, Triton's kernels run in its interpreter, patched to round as a GPU does."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when a kernel is defined, so it must be set before anything imports Triton.
    os.environ["TRITON_INTERPRET"] = "1"
    from tests import interpreter

    interpreter.patch()

from hypothesis import settings

settings.register_profile("repkernels", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("repkernels")

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many workers as cores: more threads would only wait for one another.
    torch.set_num_threads(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests are all slow are not imported for nothing: that takes seconds."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text() or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no worker ends with one of them alone."""
    items.sort(key=lambda item: "test_instructions.py" not in item.nodeid)
