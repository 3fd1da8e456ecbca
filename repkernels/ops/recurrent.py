"""Recurrent layers (SPEC.md, "Recurrent layers"): one layer in one direction is one operation over all its steps.

p = linear(x, w_ih, b_ih) of all steps at once; at each step q = linear(h, w_hh, b_hh), and the cell in fp32 by
single rounded operations. The gradient runs back over the steps; that of w_hh is one contraction over all of them.

Sequences lie as in a PackedSequence: rows ordered by step, then by sequence; batch_sizes says how many each step has,
the first ones. A step in reverse direction reads the state of the step after it.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike, digits_of, resolve
from repkernels.ops import batches, checks, matmul
from repkernels.ops.backend import backend
from repkernels.ops.dropout import dropout as dropped
from repkernels.ops.in_force import PAIRS, contract_in_force, mark
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum_rows
from repkernels.prepare import NOTHING_KEPT

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
_Seven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
_Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _steps(batch_sizes: Sequence[int], backwards: bool) -> Iterator[tuple[int, int]]:
    """The first row and the number of rows of each step, in the order in which they are taken."""
    starts = [0]
    for count in batch_sizes:
        starts.append(starts[-1] + count)
    pairs = list(zip(starts, batch_sizes, strict=False))
    return iter(pairs[::-1] if backwards else pairs)


def _product(x: Tensor, contract: str) -> Any:
    """What multiplies rows with the columns of x under `contract`, their digits made once."""
    kernels = backend("matmul", checks.device_type(x))
    digits = digits_of(contract)
    kept = kernels.quantize(x.t()[None], digits) if digits else None
    return lambda rows, bias=None: kernels.matmul(rows[None], x[None], bias, contract, kept)[0]


def _run(
    p: Tensor, h0: Tensor, c0: Tensor | None, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None,
    token: Tensor | None, batch_sizes: list[int], reverse: bool, mode: str, rule: str, gradient: str, keep: bool,
) -> _Seven:  # fmt: skip
    y, _, _, acts, before, cells, full = _fake(
        p, h0, c0, w_hh, b_hh, w_hr, token, batch_sizes, reverse, mode, rule, gradient, keep
    )
    contract = rule if token is None else PAIRS[int(token)].forward
    step = backend("recurrent", checks.device_type(p)).forward
    from_state = _product(w_hh.t(), contract)
    projected = None if w_hr is None else _product(w_hr.t(), contract)
    p, hidden = p.contiguous(), h0.clone(memory_format=torch.contiguous_format)
    cell = hidden.new_empty(0) if c0 is None else c0.clone(memory_format=torch.contiguous_format)
    for start, count in _steps(batch_sizes, reverse):
        rows = slice(start, start + count)
        kept = rows if keep else slice(0, count)
        state = cell[:count] if mode == "lstm" else hidden[:count]
        if keep:
            before[rows] = hidden[:count]
            if mode == "lstm":
                cells[rows] = state
        out = y[rows] if projected is None else full[kept]
        step(mode, p[rows], from_state(hidden[:count], b_hh), state, acts[kept], out, cell[:count])
        if projected is not None:
            y[rows] = projected(out)
        hidden[:count] = y[rows]
    return y, hidden, cell, acts, before, cells, full


def _fake(
    p: Tensor, h0: Tensor, c0: Tensor | None, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None,
    token: Tensor | None, batch_sizes: list[int], reverse: bool, mode: str, rule: str, gradient: str, keep: bool,
) -> _Seven:  # fmt: skip
    size, rows, last = p.shape[1] // GATES[mode], p.shape[0], h0.shape[1]
    kept = rows if keep else h0.shape[0]
    gated, lstm = mode in ("lstm", "gru"), mode == "lstm"
    return (
        p.new_empty((rows, last)),
        p.new_empty(h0.shape),
        p.new_empty((0,) if c0 is None else c0.shape),
        p.new_empty((kept if gated else 0, 4 * size), dtype=torch.float32),
        p.new_empty((rows if keep else 0, last)),
        p.new_empty((rows if keep and lstm else 0, size)),
        p.new_empty((0 if w_hr is None else kept, size)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Seven) -> None:
    _, _, c0, w_hh, _, w_hr, token, ctx.batch_sizes, ctx.reverse, ctx.mode, rule, ctx.gradient, _ = inputs
    y, _, c, *rest = output
    ctx.mark_non_differentiable(*rest, *([c] if c0 is None else []))
    ctx.by_token = token is not None
    ctx.save_for_backward(w_hh, w_hr, y, *rest, token if ctx.by_token else mark(rule, ctx.gradient))


def _backward(ctx: Any, g: Tensor, g_h: Tensor, g_c: Tensor, *_: Any) -> tuple[Any, ...]:
    w_hh, w_hr, y, acts, before, cells, full, token = ctx.saved_tensors
    token = token if ctx.by_token else None
    for_w, for_b, for_r = ctx.needs_input_grad[3:6]
    options = token, ctx.batch_sizes, ctx.reverse, ctx.mode, ctx.gradient
    dp, dq, dh, dc, dr = _gradient(g, g_h, g_c, w_hh, w_hr, y, acts, before, cells, *options)
    if ctx.mode != "gru":
        dq = dp

    def over_rows(a: Tensor, b: Tensor) -> Tensor:
        if token is not None:
            return matmul._matmul_by_token(a.t(), b, None, NOTHING_KEPT, token, True)
        return matmul._matmul(a.t(), b, None, NOTHING_KEPT, ctx.gradient, ctx.gradient)

    return (
        dp,
        dh,
        dc if ctx.mode == "lstm" else None,
        over_rows(dq, before) if for_w else None,
        sum_rows(dq) if for_b else None,
        over_rows(dr, full) if for_r else None,
        *(None,) * 7,
    )


def _run_gradient(
    g: Tensor, g_h: Tensor, g_c: Tensor, w_hh: Tensor, w_hr: Tensor | None, y: Tensor, acts: Tensor, before: Tensor,
    cells: Tensor, token: Tensor | None, batch_sizes: list[int], reverse: bool, mode: str, rule: str,
) -> _Five:  # fmt: skip
    dp, dq, _, _, dr = _fake_gradient(
        g, g_h, g_c, w_hh, w_hr, y, acts, before, cells, token, batch_sizes, reverse, mode, rule
    )
    contract = rule if token is None else PAIRS[int(token)].gradient
    kernels = backend("recurrent", checks.device_type(g))
    to_state = _product(w_hh, contract)
    unprojected = None if w_hr is None else _product(w_hr, contract)
    g, carried = g.contiguous(), g_h.clone(memory_format=torch.contiguous_format)
    share = g_c.float().clone() if mode == "lstm" else torch.zeros_like(carried, dtype=torch.float32)
    nothing = g.new_empty(0)
    states = {"lstm": cells, "gru": before}.get(mode, y)
    for start, count in _steps(batch_sizes, not reverse):
        rows = slice(start, start + count)
        upstream, later = g[rows], carried[:count]
        if unprojected is not None:
            kernels.summed(upstream, later, dr[rows])
            upstream, later = unprojected(dr[rows]), nothing
        kernels.backward(mode, upstream, later, share[:count], acts[rows], states[rows], dp[rows], dq[rows])
        carried[:count] = to_state(dq[rows] if mode == "gru" else dp[rows])
    if mode == "gru":
        total = torch.empty_like(carried)
        kernels.summed(share, carried, total)
        carried = total
    return dp, dq, carried, share.to(g.dtype, copy=True) if mode == "lstm" else nothing, dr


def _fake_gradient(
    g: Tensor, g_h: Tensor, g_c: Tensor, w_hh: Tensor, w_hr: Tensor | None, y: Tensor, acts: Tensor, before: Tensor,
    cells: Tensor, token: Tensor | None, batch_sizes: list[int], reverse: bool, mode: str, rule: str,
) -> _Five:  # fmt: skip
    rows, width = g.shape[0], w_hh.shape[0]
    return (
        g.new_empty((rows, width)),
        g.new_empty((rows if mode == "gru" else 0, width)),
        g.new_empty(g_h.shape),
        g.new_empty(g_c.shape if mode == "lstm" else (0,)),
        g.new_empty((0 if w_hr is None else rows, g.shape[1])),
    )


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: _Five) -> None:
    pass


def _backward_gradient(ctx: Any, *_: Any) -> None:
    raise NotImplementedError("recurrent layers: gradients of gradients are not supported")


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return batches.one_by_one(_recurrent, info, in_dims, args)


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return batches.one_by_one(_gradient, info, in_dims, args)


_recurrent = operation("recurrent", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "recurrent_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)


def direction(
    x: Tensor,
    batch_sizes: list[int],
    h: Tensor,
    c: Tensor | None,
    weights: Sequence[Tensor | None],
    mode: str,
    reverse: bool,
    contract: ContractLike | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction: x (rows, in) -> y (rows, out), and the states (batch, out), (batch, H) at the end.

    weights: w_ih, w_hh, b_ih, b_hh, w_hr, the last three or all of these None. mode: a key of `GATES`.
    """
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    assert w_ih is not None and w_hh is not None
    p = matmul.product(x, w_ih.t(), b_ih, contract, NOTHING_KEPT, "input", "weight_ih")
    tensors = [h, c, w_hh, b_hh, w_hr]
    keep = torch.compiler.is_compiling() or (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (p, *tensors))
    )
    names: tuple[str, str]
    if contract is None and torch.compiler.is_compiling():
        token, names = contract_in_force(p), ("forward", "gradient")
    else:
        token, names = None, resolve(contract, p.dtype, checks.device_type(p))
    keep = keep or torch._C._are_functorch_transforms_active()
    y, h_n, c_n, *_ = _recurrent(p, *tensors, token, batch_sizes, reverse, mode, *names, keep)
    return y, h_n, c_n


def recurrent(
    x: Tensor,
    batch_sizes: list[int],
    h: Tensor,
    c: Tensor | None,
    weights: Sequence[Sequence[Tensor | None]],
    mode: str,
    bidirectional: bool = False,
    dropout: float = 0.0,
    training: bool = False,
    contract: ContractLike | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All layers: x (rows, in) -> y (rows, directions * out), h_n and c_n of h's and c's shapes.

    x: fp32, bf16 or fp16, rows as in a PackedSequence of these batch_sizes. h: (layers * directions, batch, out).
    c: (layers * directions, batch, H) for lstm, otherwise None. weights: for each layer and direction w_ih, w_hh,
    b_ih, b_hh, w_hr, absent ones None. Under autocast everything is cast to its dtype. dropout: between layers, the
    elements of y in its order, one stream for each layer, in training only.
    contract: of all contractions, as for `repkernels.matmul`. Bits: SPEC.md, "Recurrent layers". Differentiable once.
    Raises NotImplementedError for fp64 and second derivatives.
    """
    checks.operand("input", x, DTYPES)
    dtype = checks.autocast(checks.device_type(x))
    if dtype is not None:
        cast = functools.partial(checks.cast, dtype=dtype)
        x, h, c = cast(x), cast(h), None if c is None else cast(c)
        weights = [[None if w is None else cast(w) for w in each] for each in weights]
    directions = 2 if bidirectional else 1
    # unbind, since the gradient of an index would be added to zeros.
    hs, cs = h.unbind(0), [None] * len(weights) if c is None else c.unbind(0)
    last_h, last_c = [], []
    for k in range(0, len(weights), directions):
        if k and dropout:
            x = dropped(x, dropout, training)
        found = []
        for d in range(directions):
            y, h_n, c_n = direction(x, batch_sizes, hs[k + d], cs[k + d], weights[k + d], mode, d == 1, contract)
            found.append(y)
            last_h.append(h_n)
            last_c.append(c_n)
        x = found[0] if directions == 1 else torch.cat(found, 1)
    return x, torch.stack(last_h), None if c is None else torch.stack(last_c)
