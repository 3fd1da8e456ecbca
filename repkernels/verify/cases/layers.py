"""Golden cases of recurrent layers through what their modules call."""

import torch
from torch import Tensor

from repkernels.ops.recurrent import direction
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands

GRADIENT = {"ordered": "ordered", "fixed16": "fixed24", "fixed24": "fixed32"}
BATCH_SIZES = [4, 3, 3, 1]
NAMES = ("x", "h", "c", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr")


def _recurrent(case: Case, device: torch.device) -> dict[str, Tensor]:
    mode, reverse = case["options"]["mode"], case["options"]["reverse"]
    of = {name: (v / 4).requires_grad_() for name, v in zip(NAMES, operands(case, device), strict=False)}
    cell = of["c"] if mode == "lstm" else None
    weights = [of.get(name) for name in NAMES[3:]]
    pair = case["contract"], GRADIENT[case["contract"]]
    y, h, c = direction(of["x"], BATCH_SIZES, of["h"], cell, weights, mode, reverse, pair)
    results = {"y": y, "h_n": h} | ({} if cell is None else {"c_n": c})
    leaves = {name: v for name, v in of.items() if name != "c" or cell is not None}
    upstream = [operand(case, 10 + k, device, v.shape) for k, v in enumerate(results.values())]
    grads = torch.autograd.grad(list(results.values()), list(leaves.values()), upstream)
    return results | {f"grad_{name}": g for name, g in zip(leaves, grads, strict=True)}


COMPUTE = {"recurrent": _recurrent}
