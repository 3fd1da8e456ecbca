"""Golden cases of attention through its public functions."""

import math
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands

GRADIENT = {"ordered": "ordered", "fixed8": "fixed16", "fixed16": "fixed24", "fixed24": "fixed32", "fixed32": "fixed32"}


def _options(case: Case, heads: int, device: torch.device) -> dict[str, Any]:
    """What all three forms take."""
    given = case["options"]
    options = {name: given[name] for name in ("scale", "softcap", "is_causal") if name in given}
    if "window" in given:
        options["window"] = tuple(given["window"])
    if "sinks" in given:
        sinks = inputs.operand("ordinary", "float32", (heads,), case["seed"], 5).to(device)
        options["sinks"] = sinks.requires_grad_(case["op"] != "paged_attention")
    return options | {"contract": (case["contract"], GRADIENT[case["contract"]])}


def _integers(case: Case, name: str, device: torch.device) -> Tensor:
    return torch.tensor(case["options"][name], dtype=torch.int32, device=device)


def _mask(case: Case, device: torch.device) -> Tensor:
    shape = tuple(case["options"]["mask_shape"])
    drawn = operand({**case, "kind": "ordinary"}, 4, device, shape)
    if case["options"]["mask"] == "bool":
        return drawn > -0.5
    return drawn.masked_fill(drawn < -1, -math.inf).requires_grad_()


def _dense(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    options = _options(case, x[0].shape[1], device)
    leaves = dict(zip(("q", "k", "v"), x, strict=True))
    if "mask" in case["options"]:
        options["attn_mask"] = mask = _mask(case, device)
        leaves |= {"mask": mask} if mask.requires_grad else {}
    for name in ("first_key", "first_query"):
        if name in case["options"]:
            options[name] = _integers(case, name, device)
    out = functional.scaled_dot_product_attention(*x, enable_gqa=True, **options)
    return _results(case, out, leaves, options)


def _varlen(case: Case, device: torch.device) -> dict[str, Tensor]:
    x = operands(case, device, requires_grad=True)
    options = _options(case, x[0].shape[1], device)
    queries, keys = _integers(case, "queries", device), _integers(case, "keys", device)
    out = functional.varlen_attention(x[0], x[1], x[2], queries, keys, **options)
    return _results(case, out, dict(zip(("q", "k", "v"), x, strict=True)), options)


def _paged(case: Case, device: torch.device) -> dict[str, Tensor]:
    q, k, v = operands(case, device)
    table, queries, lengths = (_integers(case, name, device) for name in ("table", "queries", "lengths"))
    options = _options(case, q.shape[1], device)
    return {"out": functional.paged_attention(q, k, v, table, queries, lengths, **options)}


def _results(case: Case, out: Tensor, leaves: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    leaves = leaves | ({"sinks": options["sinks"]} if "sinks" in options else {})
    grads = torch.autograd.grad(out, list(leaves.values()), operand(case, 3, out.device, out.shape))
    return {"out": out} | {f"grad_{name}": g for name, g in zip(leaves, grads, strict=True)}


COMPUTE = {"attention": _dense, "varlen_attention": _varlen, "paged_attention": _paged}
