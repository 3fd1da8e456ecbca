"""What the optimizers share: checks of their arguments, and state that is wider than half parameters."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops.checks import FLOATS


def wide(p: Tensor) -> torch.dtype:
    """The dtype of a parameter's state: fp32, also of half parameters; fp64 of fp64."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def check_dtypes(optimizer: torch.optim.Optimizer) -> None:
    """Takes the last group away again and raises NotImplementedError if it has parameters of another dtype."""
    for p in optimizer.param_groups[-1]["params"]:
        if p.dtype not in FLOATS:
            optimizer.param_groups.pop()
            raise NotImplementedError(f"params: dtype {p.dtype} is not supported; use a floating-point dtype")


def check_gradient(g: Tensor, name: str) -> None:
    """Raises RuntimeError for a sparse gradient."""
    if g.is_sparse or g.layout != torch.strided:
        raise RuntimeError(f"params: a gradient is sparse, which {name} does not support; use a dense one")


def restore_wide(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any], names: tuple[str, ...]) -> None:
    """Puts back what torch's load_state_dict rounded: it casts loaded state to the parameter's dtype."""
    saved = [i for group in state_dict["param_groups"] for i in group["params"]]
    own = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in zip(saved, own, strict=True):
        for name in names:
            value = state_dict["state"].get(i, {}).get(name)
            if value is not None:
                fresh = torch.empty_like(p, dtype=wide(p), requires_grad=False)
                optimizer.state[p][name] = fresh.copy_(value)
