"""What a decoder has beside norms, products and attention."""

import torch
from torch import Tensor

from repkernels.nn import functional, rope_frequencies
from repkernels.philox import words
from repkernels.verify.catalogue import Case
from repkernels.verify.operands import operand, operands

GRADIENT = {"ordered": "ordered", "fixed8": "fixed8", "fixed16": "fixed24", "fixed24": "fixed32", "fixed32": "fixed32"}
OFFS = [2, 2, 9, 10, 14]


def _gradient(case: Case, out: Tensor) -> Tensor:
    return operand({**case, "kind": "ordinary"}, 3, out.device, out.shape)


def _rotary(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    options = case["options"]
    inv_freq, scaling = rope_frequencies(16, options["parameters"], device=device)
    count = x.shape[0] * x.shape[2]
    drawn = torch.from_numpy(words(case["seed"], 1, count).astype("int64"))
    positions = (drawn >> (2 * torch.arange(count))).view(x.shape[0], -1).to(device)
    cos, sin = functional.rope_cos_sin(positions, inv_freq, scaling, x.dtype, interleaved=options["interleaved"])
    out, _ = functional.apply_rotary_pos_emb(x, x.detach(), cos, sin, interleaved=options["interleaved"])
    (grad,) = torch.autograd.grad(out, x, _gradient(case, out))
    return {"inv_freq": inv_freq, "cos": cos, "sin": sin, "out": out, "grad": grad}


def _gated(case: Case, device: torch.device) -> dict[str, Tensor]:
    gate, up = operands(case, device, requires_grad=True)
    name = case["options"]["function"]
    if name == "swiglu":
        out = functional.swiglu(gate, up)
    else:
        out = functional.geglu(gate, up, approximate="tanh" if name == "geglu_tanh" else "none")
    grads = torch.autograd.grad(out, (gate, up), _gradient(case, out))
    return {"out": out, "grad_gate": grads[0], "grad_up": grads[1]}


def _softcap(case: Case, device: torch.device) -> dict[str, Tensor]:
    (x,) = operands(case, device, requires_grad=True)
    out = functional.softcap(x, case["options"]["cap"])
    return {"out": out, "grad": torch.autograd.grad(out, x, _gradient(case, out))[0]}


def _grouped_mm(case: Case, device: torch.device) -> dict[str, Tensor]:
    a, b = operands(case, device, requires_grad=True)
    offs = torch.tensor(OFFS, dtype=torch.int32, device=device)
    out = functional.grouped_mm(a, b, offs=offs, contract=(case["contract"], GRADIENT[case["contract"]]))
    grads = torch.autograd.grad(out, (a, b), _gradient(case, out))
    return {"out": out, "grad_a": grads[0], "grad_b": grads[1]}


def _moe(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, gate_up, down = operands(case, device)
    options = case["options"]
    logits = operand({**case, "kind": "logits"}, 4, device, (x.shape[0], gate_up.shape[0]))
    weights, experts = functional.topk_router(logits, options["k"], options["norm"])
    out = functional.moe(x, experts, weights, gate_up, down, options["activation"], contract=case["contract"])
    return {"weights": weights, "experts": experts, "out": out}


def _int8_linear(case: Case, device: torch.device) -> dict[str, Tensor]:
    x, weight, bias = operands(case, device)
    if case["kind"] == "nonfinite":
        weight = operand({**case, "kind": "zeros"}, 1, device)
    q, scale = functional.quantize_int8(weight)
    out = functional.int8_linear(x, q, scale, bias, contract=case["contract"])
    return {"scale": scale, "out": out}


COMPUTE = {
    "rotary": _rotary, "gated": _gated, "softcap": _softcap, "grouped_mm": _grouped_mm, "moe": _moe,
    "int8_linear": _int8_linear,
}  # fmt: skip
