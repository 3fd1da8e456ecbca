"""Convolutions, transposed convolutions and their gradients (SPEC.md, "Convolutions").

r = the contraction of an output's receptive field with the weight by the contract's rule; + bias, widened, one
addition; one rounding to the operands' dtype; a zero is stored as +0. There are three contractions, and the derivatives
of each are the other two: the convolution, its input gradient (which is the transposed convolution) and its weight
gradient. The gradient of the bias is SUM over samples and positions.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from repkernels.contract import ContractLike, resolve
from repkernels.convolution import Convolution
from repkernels.ops import batches, checks
from repkernels.ops.backend import backend
from repkernels.ops.in_force import PAIRS, contract_in_force, mark
from repkernels.ops.operation import operation
from repkernels.ops.sum import sum

Size = int | Sequence[int]

# All tensors below are 5-D. What follows the tensors: `geometry`, a Convolution as 19 integers; `last`, whether the
# result is channels_last; `rule` and `gradient`, the contracts of this contraction and of its gradients. With a token
# the contracts are read from it, and `rule` says which of the two it is: "forward" or "gradient".


def _numbers(c: Convolution) -> list[int]:
    return [*c.size, *c.kernel, *c.stride, *c.padding, *c.dilation, *c.output, c.groups]


def _convolution(numbers: Sequence[int]) -> Convolution:
    a, b, c, d, e, f = ((numbers[i], numbers[i + 1], numbers[i + 2]) for i in range(0, 18, 3))
    return Convolution(a, b, c, d, e, f, numbers[18])


def _name(token: Tensor | None, rule: str) -> str:
    return rule if token is None else getattr(PAIRS[int(token)], rule)


def _empty(like: Tensor, shape: Sequence[int], last: bool) -> Tensor:
    form = torch.channels_last_3d if last else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=form)


def _nothing_summed(out: Tensor, bias: Tensor | None) -> Tensor:
    """`out` where every contraction is empty."""
    if bias is None:
        return out.zero_()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[bias.element_size()]
    bits = bias.detach().view(integers)  # a zero is +0, and a subnormal stays where comparisons would flush it
    bits = bits.where(bits & torch.iinfo(integers).max != 0, 0)
    return out.copy_(bits.view(bias.dtype).view(1, -1, 1, 1, 1))


def _save(ctx: Any, inputs: tuple[Any, ...], operands: tuple[Tensor | None, Tensor | None]) -> None:
    token, ctx.numbers, ctx.last, rule, ctx.gradient = inputs[-5:]
    ctx.by_token = token is not None
    ctx.save_for_backward(*operands, token if ctx.by_token else mark(rule, ctx.gradient))


def _saved(ctx: Any) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """The operands, and the arguments of the contraction that a gradient is, from the geometry's place on."""
    a, b, token = ctx.saved_tensors
    if not ctx.by_token:
        return a, b, (None, ctx.numbers, ctx.gradient, ctx.gradient)
    return a, b, (token, ctx.numbers, "gradient", "gradient")


def _channels_last(x: Tensor) -> bool:
    """Whether torch's convolutions would take x (4-D or 5-D) for channels_last."""
    if torch._C._functorch.is_batchedtensor(x) or x.is_contiguous():  # torch can't ask a batch of vmap
        return False
    return suggest_memory_format(x) in (torch.channels_last, torch.channels_last_3d)


# The convolution: x (N, C, D, H, W), w (O, C/g, kd, kh, kw), bias (O,) -> (N, O, D', H', W').


def _run(
    x: Tensor, w: Tensor, bias: Tensor | None, token: Tensor | None,
    geometry: list[int], last: bool, rule: str, gradient: str,
) -> Tensor:  # fmt: skip
    c = _convolution(geometry)
    out = _empty(x, (x.shape[0], w.shape[0], *c.output), last)
    if out.numel() == 0:
        return out
    if x.numel() == 0 or w.numel() == 0:
        return _nothing_summed(out, bias)
    _check_positions(x, c)
    backend("conv", checks.device_type(x)).conv(x, w, bias, out, c, _along_channels(_name(token, rule), w, c))
    return out


def _check_positions(x: Tensor, c: Convolution) -> None:
    """GPU kernels count the positions of a batch, of the convolution's input or of its result, in 32 bits."""
    positions = len(x) * max(math.prod(c.size), math.prod(c.output))
    if x.is_cuda and positions >= 2**31:
        raise RuntimeError(
            f"input: a batch must have fewer than 2**31 positions (samples times those of each), got {positions}; "
            "split the batch"
        )


def _along_channels(contract: str, w: Tensor, c: Convolution) -> str:
    """The contract that the convolution and its input gradient follow: depthwise ones are `ordered`."""
    return "ordered" if w.shape[1] == 1 and c.groups > 1 else contract


def _fake(
    x: Tensor, w: Tensor, bias: Tensor | None, token: Tensor | None,
    geometry: list[int], last: bool, rule: str, gradient: str,
) -> Tensor:  # fmt: skip
    return _empty(x, (x.shape[0], w.shape[0], *_convolution(geometry).output), last)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w = inputs[:2]
    for_x, for_w = ctx.needs_input_grad[:2]
    ctx.weight_last = _channels_last(w)
    _save(ctx, inputs, (x if for_w else None, w if for_x else None))


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, w, (token, geometry, *names) = _saved(ctx)
    for_x, for_w, for_bias = ctx.needs_input_grad[:3]
    grad_x = _input_gradient(grad, w, None, token, geometry, ctx.last, *names) if for_x else None
    grad_w = _weight_gradient(grad, x, token, geometry, ctx.weight_last, *names) if for_w else None
    return grad_x, grad_w, _bias_gradient(grad) if for_bias else None, *(None,) * 5


def _bias_gradient(grad: Tensor) -> Tensor:
    return sum(grad, (0, 2, 3, 4), dtype=grad.dtype)


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return _batched(_conv, info, in_dims, args)


def _batched(call: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Tensor, int]:
    """Samples do not know of each other, so a batch of inputs is more samples; with anything else one by one."""
    if in_dims[0] is not None and all(dim is None for dim in in_dims[1:]):
        x = args[0].movedim(in_dims[0], 0)
        y = call(x.flatten(0, 1), *args[1:])
        return y.unflatten(0, x.shape[:2]), 0
    return _one_by_one(call, info, in_dims, args)


def _one_by_one(call: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Tensor, int]:
    results, _ = batches.one_by_one(lambda *sample: (call(*sample),), info, in_dims, args)
    return results[0], 0


# The input gradient: g (N, O, D', H', W'), w (O, C/g, kd, kh, kw), bias (C,) -> (N, C, D, H, W).


def _run_input(
    g: Tensor, w: Tensor, bias: Tensor | None, token: Tensor | None,
    geometry: list[int], last: bool, rule: str, gradient: str,
) -> Tensor:  # fmt: skip
    c = _convolution(geometry)
    out = _empty(g, (g.shape[0], w.shape[1] * c.groups, *c.size), last)
    if out.numel() == 0:
        return out
    if g.numel() == 0 or w.numel() == 0:
        return _nothing_summed(out, bias)
    _check_positions(g, c)
    contract = _along_channels(_name(token, rule), w, c)
    backend("conv", checks.device_type(g)).conv_input_gradient(g, w, bias, out, c, contract)
    return out


def _fake_input(
    g: Tensor, w: Tensor, bias: Tensor | None, token: Tensor | None,
    geometry: list[int], last: bool, rule: str, gradient: str,
) -> Tensor:  # fmt: skip
    c = _convolution(geometry)
    return _empty(g, (g.shape[0], w.shape[1] * c.groups, *c.size), last)


def _backward_input(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    g, w, (token, geometry, *names) = _saved(ctx)
    for_g, for_w, for_bias = ctx.needs_input_grad[:3]
    grad_g = _conv(grad, w, None, token, geometry, ctx.last, *names) if for_g else None
    grad_w = _weight_gradient(g, grad, token, geometry, ctx.weight_last, *names) if for_w else None
    return grad_g, grad_w, _bias_gradient(grad) if for_bias else None, *(None,) * 5


def _vmap_input(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return _batched(_input_gradient, info, in_dims, args)


# The weight gradient: g (N, O, D', H', W'), x (N, C, D, H, W) -> (O, C/g, kd, kh, kw).


def _run_weight(
    g: Tensor, x: Tensor, token: Tensor | None, geometry: list[int], last: bool, rule: str, gradient: str
) -> Tensor:
    c = _convolution(geometry)
    out = _fake_weight(g, x, token, geometry, last, rule, gradient)
    if out.numel() == 0:
        return out
    if g.numel() == 0 or x.numel() == 0:
        return out.zero_()
    _check_positions(g, c)
    backend("conv", checks.device_type(g)).conv_weight_gradient(g, x, out, c, _name(token, rule))
    return out


def _fake_weight(
    g: Tensor, x: Tensor, token: Tensor | None, geometry: list[int], last: bool, rule: str, gradient: str
) -> Tensor:
    c = _convolution(geometry)
    return _empty(g, (g.shape[1], x.shape[1] // c.groups, *c.kernel), last)


def _setup_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, x = inputs[:2]
    for_g, for_x = ctx.needs_input_grad[:2]
    ctx.operands_last = _channels_last(g), _channels_last(x)
    _save(ctx, inputs, (g if for_x else None, x if for_g else None))


def _backward_weight(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    g, x, (token, geometry, *names) = _saved(ctx)
    for_g, for_x = ctx.needs_input_grad[:2]
    g_last, x_last = ctx.operands_last
    grad_g = _conv(x, grad, None, token, geometry, g_last, *names) if for_g else None
    grad_x = _input_gradient(g, grad, None, token, geometry, x_last, *names) if for_x else None
    return grad_g, grad_x, *(None,) * 5


def _vmap_weight(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return _one_by_one(_weight_gradient, info, in_dims, args)


_conv = operation("conv", _run, _fake, _setup_context, _backward, _vmap)
_input_gradient = operation(
    "conv_input_gradient", _run_input, _fake_input, _setup_context, _backward_input, _vmap_input
)
_weight_gradient = operation(
    "conv_weight_gradient", _run_weight, _fake_weight, _setup_weight, _backward_weight, _vmap_weight
)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.conv1d: input (N, C, W) or (C, W), weight (O, C / groups, kW). See `conv2d`."""
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups, contract)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.conv2d, with bits that depend on the operands and the contract alone.

    input: (N, C, H, W) or (C, H, W). weight: (O, C / groups, kH, kW). bias: (O,). fp32, bf16, fp16 or fp64, all of one
        dtype and device, any strides. Result: (N, O, H', W'), channels_last where input or weight is, otherwise
        contiguous. Under autocast, operands other than fp64 are cast to its dtype.
    stride, dilation: one number or one per axis. padding: zeros on both sides of an axis, or "valid" (none), or "same"
        (stride 1: the result has input's size; the odd zero comes last).
    contract: `repkernels.contract` says what there is and what is followed where none is named. The pair is captured
        now: gradients, and their gradients, follow its second name.

    Bits: SPEC.md, "Convolutions": those of a sample are the same in every batch and in every memory format. A kernel of
    size 1 without padding gives those of `linear` of the pixels; depthwise convolutions (C / groups = 1, groups > 1)
    are `ordered` under every contract. Accuracy: as `repkernels.matmul`, a sample's group of channels in the place of
    a row of a. Differentiable any number of times.

    Raises, before anything is launched: TypeError for what is no tensor or no int; RuntimeError for sizes, dtypes or
    devices that do not fit together; NotImplementedError (a RuntimeError) for other dtypes, layouts and devices;
    ValueError for an unknown contract, `native` on fp32 or fp64 and `fixedNN` on fp64.
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups, contract)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.conv3d: input (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, kD, kH, kW).

    See `conv2d`.
    """
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups, contract)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.conv_transpose1d: input (N, C, W) or (C, W), weight (C, O / groups, kW).

    See `conv_transpose2d`.
    """
    return _transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation, contract)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.conv_transpose2d: the input gradient of `conv2d` with the same weight, plus bias.

    input: (N, C, H, W) or (C, H, W). weight: (C, O / groups, kH, kW). bias: (O,). Result: (N, O, H', W') with
    H' = (H - 1) * stride - 2 * padding + dilation * (kH - 1) + output_padding + 1. output_padding: less than stride or
    dilation. Dtypes, memory formats, contracts, gradients and errors as `conv2d`; bits: SPEC.md, "Convolutions".
    """
    return _transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation, contract)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.conv_transpose3d: input (N, C, D, H, W) or (C, D, H, W), weight (C, O / groups, kD, kH, kW).

    See `conv_transpose2d`.
    """
    return _transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation, contract)


def _convolve(
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: str | Size,
    dilation: Size,
    groups: int,
    contract: ContractLike | None,
) -> Tensor:
    what = f"conv{axes}d"
    input, weight, bias = _operands(what, axes, input, weight, bias)
    strides, dilations = _sizes("stride", stride, axes, 1), _sizes("dilation", dilation, axes, 1)
    kernel = tuple(weight.shape[2:])
    _check_weight(weight, groups)
    x = input if input.ndim == axes + 2 else input.unsqueeze(0)
    if x.shape[1] != weight.shape[1] * groups:
        raise RuntimeError(
            f"input and weight: given groups={groups} and weight of size {list(weight.shape)}, expected input "
            f"{list(input.shape)} to have {weight.shape[1] * groups} channels, but got {x.shape[1]} channels instead"
        )
    _check_bias(bias, weight, weight.shape[0])
    size = tuple(x.shape[2:])
    if 0 in size:
        raise RuntimeError(f"input: only batches or channels may be empty, got shape {tuple(input.shape)}")
    if isinstance(padding, str):
        pads, output = _named_padding(padding, size, kernel, strides, dilations)
    else:
        pads = _sizes("padding", padding, axes, 0)
        output = None
    if output is None:
        padded = [s + 2 * p for s, p in zip(size, pads, strict=True)]
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
        if any(p < r for p, r in zip(padded, reach, strict=True)):
            raise RuntimeError(
                f"input: calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel size: "
                f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size"
            )
        output = tuple((p - r) // s + 1 for p, r, s in zip(padded, reach, strides, strict=True))
    c = _three_axes(size, kernel, strides, pads, dilations, output, groups)
    return _call(_conv, axes, input.ndim == axes + 1, x, weight, bias, c, contract)


def _transpose(
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
    contract: ContractLike | None,
) -> Tensor:
    what = f"conv_transpose{axes}d"
    input, weight, bias = _operands(what, axes, input, weight, bias)
    strides, dilations = _sizes("stride", stride, axes, 1), _sizes("dilation", dilation, axes, 1)
    pads, more = _sizes("padding", padding, axes, 0), _sizes("output_padding", output_padding, axes, 0)
    _check_weight(weight, groups)
    x = input if input.ndim == axes + 2 else input.unsqueeze(0)
    if x.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"input and weight: given transposed=1 and weight of size {list(weight.shape)}, expected input "
            f"{list(input.shape)} to have {weight.shape[0]} channels, but got {x.shape[1]} channels instead"
        )
    _check_bias(bias, weight, weight.shape[1] * groups)
    if any(m >= s and m >= d for m, s, d in zip(more, strides, dilations, strict=True)):
        raise RuntimeError(
            f"output_padding: must be smaller than either stride or dilation, but got output_padding={more}, "
            f"stride={strides}, dilation={dilations}"
        )
    size, kernel = tuple(x.shape[2:]), tuple(weight.shape[2:])
    result = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        for n, s, p, d, k, m in zip(size, strides, pads, dilations, kernel, more, strict=True)
    )
    if any(n < 1 for n in (*size, *result)):
        raise RuntimeError(
            f"input: given input size per channel: {size}. Calculated output size per channel: {result}. "
            "Both must be positive; pad less or give a larger input"
        )
    c = _three_axes(result, kernel, strides, pads, dilations, size, groups)
    return _call(_input_gradient, axes, input.ndim == axes + 1, x, weight, bias, c, contract)


def _call(
    op: Any,
    axes: int,
    single: bool,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    c: Convolution,
    contract: ContractLike | None,
) -> Tensor:
    """`op` of x and w with all of their axes; `single`: the result loses its batch axis."""
    last = axes > 1 and (_channels_last(x) or _channels_last(w))
    for _ in range(3 - axes):
        x, w = x.unsqueeze(2), w.unsqueeze(2)
    if contract is None and torch.compiler.is_compiling():
        result = op(x, w, bias, contract_in_force(x), _numbers(c), last, "forward", "gradient")
    else:
        result = op(x, w, bias, None, _numbers(c), last, *resolve(contract, x.dtype, checks.device_type(x)))
    for _ in range(3 - axes):
        result = result.squeeze(2)
    return result.squeeze(0) if single else result


def _three_axes(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output: Sequence[int],
    groups: int,
) -> Convolution:
    def full(sizes: Sequence[int], missing: int) -> Any:
        return (*(missing,) * (3 - len(sizes)), *sizes)

    return Convolution(
        full(size, 1), full(kernel, 1), full(stride, 1), full(padding, 0), full(dilation, 1), full(output, 1), groups
    )


def _operands(
    what: str, axes: int, input: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The tensors as autocast passes them on, of fitting dtypes, devices and numbers of dimensions."""
    checks.operand("input", input)
    checks.operand("weight", weight)
    if bias is not None:
        checks.operand("bias", bias)
    dtype = checks.autocast(checks.device_type(input))
    if dtype is not None:
        input, weight = checks.cast(input, dtype), checks.cast(weight, dtype)
        bias = None if bias is None else checks.cast(bias, dtype)
    checks.same("weight", weight, "input", input)
    if bias is not None:
        checks.same("bias", bias, "input", input)
    if input.ndim not in (axes + 1, axes + 2):
        raise RuntimeError(
            f"input: expected {axes + 1}D (unbatched) or {axes + 2}D (batched) input to {what}, "
            f"got shape {tuple(input.shape)}"
        )
    if weight.ndim != axes + 2:
        raise RuntimeError(f"weight: {what} expects {axes + 2} dimensions, got shape {tuple(weight.shape)}")
    return input, weight, bias


def _sizes(name: str, value: Size, axes: int, least: int) -> tuple[int, ...]:
    """One integer per axis, none of them below `least`."""
    values = (value,) if isinstance(value, int | torch.SymInt) else value
    if not isinstance(values, tuple | list):
        raise TypeError(f"{name}: expected an int or {axes} of them, got {type(value).__name__}")
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int | torch.SymInt):
            raise TypeError(f"{name}: expected an int or {axes} of them, got {value!r}")
    if len(values) not in (1, axes):
        raise RuntimeError(f"{name}: expected a single integer value or a list of {axes} values, got {list(values)}")
    for v in values:
        if v < least:
            raise RuntimeError(f"{name}: must not be {'negative' if least == 0 else 'below 1'}, got {value}")
    return tuple(values) if len(values) == axes else (values[0],) * axes


def _named_padding(
    padding: str, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The padding before each axis, and the size of the result where that does not follow from it."""
    if padding == "valid":
        return (0,) * len(size), None
    if padding != "same":
        raise RuntimeError(f"padding: invalid padding string {padding!r}; use 'valid', 'same' or numbers")
    if any(s != 1 for s in stride):
        raise RuntimeError("padding: 'same' is not supported for strided convolutions")
    return tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)), tuple(size)


def _check_weight(weight: Tensor, groups: int) -> None:
    if isinstance(groups, bool) or not isinstance(groups, int):
        raise TypeError(f"groups: expected an int, got {type(groups).__name__}")
    if groups < 1:
        raise RuntimeError(f"groups: must be at least 1, got {groups}")
    if weight.shape[0] < groups or weight.shape[0] % groups:
        raise RuntimeError(
            f"weight: given groups={groups}, its first size must be a multiple of {groups} and not 0, "
            f"got weight of size {list(weight.shape)}"
        )
    if 0 in weight.shape[2:]:
        raise RuntimeError(f"weight: a kernel needs at least one element, got weight of size {list(weight.shape)}")


def _check_bias(bias: Tensor | None, weight: Tensor, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(
            f"bias: given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {channels} "
            f"elements, but got bias of size {list(bias.shape)} instead"
        )
