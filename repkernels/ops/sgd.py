"""Steps of stochastic gradient descent on lists of tensors (SPEC.md, "SGD"), in place."""

from collections.abc import Sequence

import torch
from torch import Tensor

from repkernels.ops.backend import backend
from repkernels.ops.flat import in_memory_order, write_back


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
    if v is None and momentum != 0:
        raise ValueError("v: None, but momentum needs one")
    _steps([p], [g], [] if v is None else [v], lr, momentum, dampening, weight_decay, nesterov, first, maximize)


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


def _steps(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    v: Sequence[Tensor],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    first: bool,
    maximize: bool,
) -> None:
    columns = (p, g, v) if v else (p, g)
    groups, copies = in_memory_order(list(zip(*columns, strict=True)))
    flat = [list(column) for column in zip(*groups, strict=True)]
    step = backend("sgd", p[0].device.type).sgd_steps
    step(*flat[:2], flat[2] if v else [], lr, momentum, dampening, weight_decay, nesterov, first, maximize)
    write_back(copies, [*p, *v])


def sgd_steps(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    v: Sequence[Tensor],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    first: bool,
    maximize: bool,
) -> None:
    """Updates each p (any strides, of one dtype and device) and its fp32 momentum v from its gradient g.

    Each a single rounded operation in binary32 (fp64, with fp64 momentum: binary64), a half p rounded once: g = -g if
    maximize; g = g + RN(weight_decay * p) if weight_decay; with momentum v = g at the first step, else
    v = RN(momentum * v) + RN((1 - dampening) * g), and g = v, or g + RN(momentum * v) for nesterov;
    p = p - RN(lr * g). Scalars are computed in binary64 and rounded once. v is empty without momentum.
    """
    if not p or p[0].is_meta:
        return
    options = (lr, momentum, dampening, weight_decay, nesterov, first, maximize)
    if torch.compiler.is_compiling():
        for i, each in enumerate(p):
            _op(each, g[i], v[i] if v else None, *options)
        return
    _steps(p, g, v, *options)
    # Autograd and kept digits go by the version, and a kernel writes behind torch's back.
    torch.autograd.graph.increment_version([*p, *v])
