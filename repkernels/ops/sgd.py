"""One step of stochastic gradient descent on one tensor (SPEC.md, "SGD"), in place."""

import torch
from torch import Tensor

from repkernels.ops.backend import backend


def _run(
    p: Tensor,
    g: Tensor,
    v: Tensor | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    first: bool,
    maximize: bool,
) -> None:
    step = backend("sgd", p.device.type).sgd_step
    # Kernels read the memory, which has the other sign where torch's negative bit is set.
    where_p = p.resolve_neg()
    step(where_p, g.resolve_neg(), v, lr, momentum, dampening, weight_decay, nesterov, first, maximize)
    if where_p is not p:
        p.copy_(where_p)


_op = torch.library.custom_op("repkernels::sgd_step", _run, mutates_args=("p", "v"))


@_op.register_fake
def _(
    p: Tensor,
    g: Tensor,
    v: Tensor | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    first: bool,
    maximize: bool,
) -> None:
    return None


def sgd_step(
    p: Tensor,
    g: Tensor,
    v: Tensor | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    first: bool,
    maximize: bool,
) -> None:
    """Updates p (any shape, fp32, or a half type rounded once) and its fp32 momentum v from the gradient g.

    Each a single rounded operation in binary32 (fp64, with fp64 momentum: binary64): g = -g if maximize;
    g = g + RN(weight_decay * p) if weight_decay; with momentum v = g at the first step, else
    v = RN(momentum * v) + RN((1 - dampening) * g), and g = v, or g + RN(momentum * v) for nesterov;
    p = p - RN(lr * g). Scalars are computed in binary64 and rounded once.
    """
    if torch.compiler.is_compiling():
        _op(p, g, v, lr, momentum, dampening, weight_decay, nesterov, first, maximize)
        return
    _run(p, g, v, lr, momentum, dampening, weight_decay, nesterov, first, maximize)
    # The kernel writes behind torch's back, and autograd and kept digits go by the version.
    torch.autograd.graph.increment_version(p)
    if v is not None:
        torch.autograd.graph.increment_version(v)
