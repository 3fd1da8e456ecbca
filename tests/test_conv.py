"""Convolutions: bits as the reference, shapes, layouts and errors as torch, derivatives of derivatives."""

import functools

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import repkernels
from reference import conv as reference
from repkernels.nn import functional
from repkernels.ops import conv as operations
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

LAST = torch.channels_last
each_device = pytest.mark.parametrize("device", DEVICES)


def _operands(*shapes, dtype=torch.float32, device="cpu"):
    return [randn(*shape, dtype=dtype, device=device, seed=i) for i, shape in enumerate(shapes)]


def _gradients(call, operands, grad):
    leaves = [x.detach().requires_grad_() for x in operands]
    result = call(*leaves)
    return [result, *torch.autograd.grad(result, leaves, grad)]


@each_device
@pytest.mark.parametrize(
    ("dtype", "contract"),
    [
        (torch.float32, "ordered"),
        (torch.float32, "fixed8"),
        (torch.float32, "fixed24"),
        (torch.float32, "fixed32"),
        (torch.bfloat16, "fixed16"),
        (torch.float64, "ordered"),
    ],
)
@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        pytest.param((2, 4, 5, 6), (6, 2, 3, 2), {"padding": 1, "stride": (2, 1), "groups": 2}, id="groups"),
        pytest.param((2, 3, 5, 4), (6, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 3}, id="depthwise"),
        pytest.param((2, 3, 5, 4), (4, 3, 1, 1), {"stride": 2}, id="pointwise"),
    ],
)
def test_bits_of_non_finite_operands(device, dtype, contract, x, weight, options):
    """Also where a sample, a weight and a gradient have elements that are not finite, in both memory formats."""
    x, weight, bias = _operands(x, weight, weight[:1], dtype=dtype, device=device)
    shape = reference.geometry(x.shape[2:], weight.shape[2:], **options)
    grad = randn(2, len(weight), *shape.output, dtype=dtype, device=device, seed=3)
    for special in (False, True):
        if special:
            x[0, 0, 2, 1], x[1, 1, 4, 2], x[1, 0, 2, 2] = float("nan"), float("inf"), 0.0
            weight[0], weight[1, 0, 0, 0] = 0.0, -float("inf")
            grad[0, 1, 0, 0], grad[1, 1, 1, 1], grad[1, 2, 0, 1] = float("inf"), -float("inf"), float("nan")
        v, w, g = values(x), values(weight), values(grad)
        expected = [
            reference.forward(v, w, values(bias), shape, name(dtype), contract),
            reference.input_gradient(g, w, None, shape, name(dtype), contract),
            reference.weight_gradient(g, v, shape, name(dtype), contract),
            reference.bias_gradient(g, name(dtype)),
        ]
        for form in (torch.contiguous_format, LAST):
            operands = [x.contiguous(memory_format=form), weight.contiguous(memory_format=form), bias]
            call = functools.partial(functional.conv2d, **options, contract=contract)
            results = _gradients(call, operands, grad)
            for result, wanted in zip(results, expected, strict=True):
                assert_same_bits(result.cpu(), tensor(wanted, dtype))


@each_device
@pytest.mark.parametrize("contract", ["ordered", "fixed24"])
def test_long_contractions(device, contract):
    """More terms than a chunk, than a stretch of the weight gradient, and than one thread's block of rows."""
    x, weight = _operands((3, 600, 19, 18), (5, 600, 3, 3), device=device)
    x[2, 7, 3, 3] = float("inf")
    shape = reference.geometry(x.shape[2:], (3, 3), padding=1)
    result = functional.conv2d(x, weight, padding=1, contract=contract)
    corner = values(x)[2:, :, :5, :5].copy()
    if contract == "ordered":  # which outputs nearby are does not depend on the rest of a sample
        shape = reference.geometry((5, 5), (3, 3), padding=1)
        expected = reference.forward(corner, values(weight), None, shape, "float32", contract)
        assert_same_bits(result[2:, :, :4, :4].cpu(), tensor(expected[..., :4, :4], torch.float32))
    grad = randn(3, 5, 19, 18, device=device, seed=2)
    leaf = weight.detach().requires_grad_()
    few = x[:, :2].contiguous()
    result = functional.conv2d(few, leaf[:, :2], padding=1, contract=contract)
    (made,) = torch.autograd.grad(result, leaf, grad)
    shape = reference.geometry((19, 18), (3, 3), padding=1)
    expected = reference.weight_gradient(values(grad), values(few), shape, "float32", contract)
    assert_same_bits(made[:, :2].cpu(), tensor(expected, torch.float32))


@each_device
def test_chunks_of_terms_that_a_stride_leaves_out(device):
    grad, weight, bias = _operands((1, 1030, 2, 2), (1030, 1, 2, 2), (1,), device=device)
    result = functional.conv_transpose2d(grad, weight, bias, stride=(2, 1), padding=(0, 1), contract="ordered")
    shape = reference.transposed_geometry((2, 2), (2, 2), (2, 1), (0, 1))
    expected = reference.input_gradient(values(grad), values(weight), values(bias), shape, "float32", "ordered")
    assert_same_bits(result.cpu(), tensor(expected, torch.float32))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_shapes_are_torchs(axes, transposed):
    """On small integers, which every contract computes exactly."""
    call = f"conv_transpose{axes}d" if transposed else f"conv{axes}d"
    options = [{}, {"padding": 1, "stride": 2}, {"groups": 2, "dilation": 2, "stride": (3,)}, {"bias": True}]
    options += [{"stride": 3, "output_padding": 2}] if transposed else [{"padding": "same"}, {"padding": "valid"}]
    for size in (7, 6):
        x = torch.randint(-4, 5, (2, 4, size, 8, 7)[: axes + 2], generator=torch.Generator().manual_seed(0)).float()
        for given in options:
            given = dict(given)
            groups, bias = given.get("groups", 1), given.pop("bias", None)
            weight = torch.arange(4 * 4 // groups * 2**axes).float() % 7 - 3
            weight = weight.view(4, 4 // groups, *(2,) * axes)
            bias = torch.arange(4).float() if bias else None
            for v in (x, x[0], x[:0]):
                expected = getattr(torch.nn.functional, call)(v, weight, bias, **given)
                actual = getattr(functional, call)(v, weight, bias, **given, contract="fixed16")
                assert actual.shape == expected.shape
                assert torch.equal(actual, expected)


def test_memory_formats_are_torchs():
    x, weight, transposed = _operands((2, 4, 5, 6), (6, 4, 3, 3), (4, 6, 3, 3))
    cases = [
        (x, weight), (x.to(memory_format=LAST), weight), (x, weight.to(memory_format=LAST)),
        (x.to(memory_format=LAST)[:, :, 1:], weight), (x.to(memory_format=LAST), weight[:, :, :1, :1].contiguous()),
        (x[:, :1], weight[:, :1]), (x.to(memory_format=LAST)[0], weight), (x.transpose(2, 3), weight),
    ]  # fmt: skip
    for v, w in cases:
        expected, actual = torch.conv2d(v, w), functional.conv2d(v, w)
        assert actual.stride() == expected.stride()
        assert_same_bits(actual, functional.conv2d(v.contiguous(), w.contiguous()))
    for v, w in ((x, transposed), (x.to(memory_format=LAST), transposed), (x, transposed.to(memory_format=LAST))):
        assert functional.conv_transpose2d(v, w).stride() == torch.conv_transpose2d(v, w).stride()
    leaves = x.to(memory_format=LAST).requires_grad_(), weight.to(memory_format=LAST).requires_grad_()
    for grad in torch.autograd.grad(functional.conv2d(*leaves).sum(), leaves):
        assert grad.is_contiguous(memory_format=LAST)
    line = randn(2, 4, 9).transpose(1, 2).contiguous().transpose(1, 2)
    assert functional.conv1d(line, weight[:, :, 0]).is_contiguous()


@each_device
def test_strides_change_nothing(device):
    x, weight = _operands((2, 3, 6, 5), (4, 3, 2, 2), device=device)
    views = [x.mT.contiguous().mT, x.flip(3), x[:, :, ::2], x[:, :1].expand(2, 3, 6, 5), x[..., 1:], x.movedim(1, 3)]
    for v in [view if view.shape[1] == 3 else view.movedim(3, 1) for view in views]:
        for w in (weight, weight.mT, weight[:1].expand(4, 3, 2, 2)):
            for contract in ("ordered", "fixed16"):
                expected = functional.conv2d(v.contiguous(), w.contiguous(), contract=contract)
                assert_same_bits(functional.conv2d(v, w, contract=contract), expected)


@each_device
def test_samples_and_threads_change_nothing(device):
    x, weight = _operands((5, 20, 17, 16), (40, 20, 3, 3), device=device)
    grad, threads = randn(5, 40, 17, 16, seed=2, device=device), torch.get_num_threads()
    call = functools.partial(functional.conv2d, padding=1)
    whole = _gradients(call, (x, weight), grad)
    try:
        torch.set_num_threads(1)
        for mine, other in zip(whole, _gradients(call, (x, weight), grad), strict=True):
            assert_same_bits(mine, other)
    finally:
        torch.set_num_threads(threads)
    alone = _gradients(call, (x[3:4], weight), grad[3:4])
    assert_same_bits(whole[0][3:4], alone[0])
    assert_same_bits(whole[1][3:4], alone[1])


def test_subnormals_are_kept():
    x, weight = _operands((1, 2, 4, 4), (2, 2, 3, 3))
    x, weight = x * 2.0**-130, weight * 2.0**-3
    for contract in ("ordered", "fixed24"):
        call = functools.partial(functional.conv2d, padding=1, contract=contract)
        expected = _gradients(call, (x, weight), x)
        torch.set_flush_denormal(True)
        try:
            actual = _gradients(call, (x, weight), x)
        finally:
            torch.set_flush_denormal(False)
        for a, b in zip(actual, expected, strict=True):
            assert_same_bits(a, b)


@each_device
def test_pointwise_is_linear_and_depthwise_is_ordered(device):
    x, weight, bias = _operands((2, 33, 3, 4), (7, 33), (7,), device=device)
    for contract in ("ordered", "fixed16"):
        result = functional.conv2d(x, weight[:, :, None, None], bias, contract=contract)
        expected = functional.linear(x.movedim(1, -1), weight, bias, contract=contract)
        assert_same_bits(result, expected.movedim(-1, 1))
    x, weight = _operands((2, 3, 5, 5), (6, 1, 3, 3), device=device)
    for call in (functional.conv2d, functional.conv_transpose2d):
        v = x if call is functional.conv2d else x.repeat(1, 2, 1, 1)
        assert_same_bits(call(v, weight, groups=3, contract="fixed8"), call(v, weight, groups=3, contract="ordered"))


@each_device
def test_nothing_to_sum(device):
    weight, bias = _operands((4, 3, 3, 3), (4,), device=device)
    bias[1] = -0.0
    none = torch.empty(2, 0, 5, 5, device=device)
    result = functional.conv2d(none, weight[:, :0], bias)
    assert_same_bits(result, (bias + 0).view(1, 4, 1, 1).expand(2, 4, 3, 3).contiguous())
    leaves = torch.empty(0, 3, 5, 5, device=device).requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    grads = torch.autograd.grad(functional.conv2d(*leaves), leaves, torch.empty(0, 4, 3, 3, device=device))
    assert grads[0].shape == leaves[0].shape
    assert_same_bits(grads[1], torch.zeros_like(weight))
    assert_same_bits(grads[2], torch.zeros_like(bias))


def test_derivatives_of_derivatives():
    x, weight, bias = (v.requires_grad_() for v in _operands((2, 4, 4, 3), (4, 2, 2, 2), (4,), dtype=torch.float64))
    options = {"stride": (2, 1), "padding": 1, "groups": 2}
    for call, more in ((functional.conv2d, {}), (functional.conv_transpose2d, {"output_padding": (1, 0)})):
        call = functools.partial(call, **options, **more)
        assert torch.autograd.gradcheck(call, (x, weight, bias), fast_mode=True)
        assert torch.autograd.gradgradcheck(call, (x, weight, bias), fast_mode=True)


def test_the_contract_is_captured_in_the_forward_pass():
    x, weight = _operands((2, 3, 5, 5), (4, 3, 3, 3))
    expected = _gradients(
        lambda *a: functional.conv2d(*a, contract=("fixed8", "fixed16")), (x, weight), randn(2, 4, 3, 3)
    )
    leaves = x.requires_grad_(), weight.requires_grad_()
    with repkernels.contract(("fixed8", "fixed16")):
        result = functional.conv2d(*leaves)
    with repkernels.contract("ordered"):
        grads = torch.autograd.grad(result, leaves, randn(2, 4, 3, 3))
    for a, b in zip([result, *grads], expected, strict=True):
        assert_same_bits(a, b)
    with repkernels.contract("fixed8"):
        result = checkpoint(lambda *a: functional.conv2d(*a).sin(), *leaves, use_reentrant=False)
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        result.sum().backward()


@each_device
def test_compiled(device):
    torch._dynamo.reset()
    x, weight, bias = _operands((2, 4, 5, 5), (6, 2, 3, 3), (6,), device=device)

    def both(x, weight, bias):
        y = functional.conv2d(x, weight, bias, stride=2, padding="valid", groups=2)
        return functional.conv_transpose2d(y, weight, stride=2, groups=2, contract=("fixed24", "ordered"))

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    grad = randn(2, 4, 5, 5, device=device, seed=4)
    for contract in ("ordered", ("fixed8", "fixed16")):
        with repkernels.contract(contract):
            expected, actual = (_gradients(f, (x, weight, bias), grad) for f in (both, compiled))
        for a, b in zip(actual, expected, strict=True):
            assert_same_bits(a, b)
    torch._dynamo.reset()


@each_device
def test_opcheck(device):
    x, weight, bias, grad = (
        v.requires_grad_() for v in _operands((2, 4, 5, 5), (6, 2, 3, 3), (6,), (2, 6, 3, 3), device=device)
    )
    x, weight, grad = (v.unsqueeze(2) for v in (x, weight, grad))
    shape = [1, 5, 5, 1, 3, 3, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 3, 3, 2]
    ops, rest = torch.ops.repkernels, (None, shape, False, "fixed24", "ordered")
    torch.library.opcheck(ops.conv.default, (x.detach(), weight.detach().requires_grad_(), bias, *rest))
    torch.library.opcheck(
        ops.conv_input_gradient.default, (grad.detach().requires_grad_(), weight.detach(), None, *rest)
    )
    torch.library.opcheck(ops.conv_weight_gradient.default, (grad.detach(), x.detach().requires_grad_(), *rest))


def test_vmap():
    x, weights, bias = _operands((3, 2, 4, 5, 5), (3, 6, 4, 2, 2), (6,))
    result = torch.vmap(functional.conv2d, (0, None, None))(x, weights[0], bias)
    assert_same_bits(result, torch.stack([functional.conv2d(v, weights[0], bias) for v in x]))
    result = torch.vmap(functional.conv2d, (0, 0))(x, weights)
    assert_same_bits(result, torch.stack([functional.conv2d(v, w) for v, w in zip(x, weights, strict=True)]))

    def loss(weight, v):
        return functional.conv2d(v, weight).square().sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0))(weights[0], x)
    for i in range(3):
        assert_same_bits(per_sample[i], torch.func.grad(loss)(weights[0], x[i]))


def test_autocast():
    x, weight, bias = _operands((2, 3, 5, 5), (4, 3, 3, 3), (4,))
    half = [v.bfloat16() for v in (x, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16):
        result = functional.conv2d(x, weight, bias)
        assert_same_bits(functional.conv_transpose2d(result, weight), functional.conv_transpose2d(result, half[1]))
        assert functional.conv2d(x.double(), weight.double()).dtype == torch.float64
    assert_same_bits(result, functional.conv2d(*half))


def _refused():
    x, w, t = torch.ones(2, 4, 8, 8), torch.ones(6, 4, 3, 3), torch.ones(4, 6, 3, 3)
    conv, transpose = "conv2d", "conv_transpose2d"
    return [
        (conv, (x.int(), w.int()), {}, NotImplementedError, "input: dtype"),
        (conv, ([1], w), {}, TypeError, "input: expected a Tensor"),
        (conv, (x, None), {}, TypeError, "weight: expected a Tensor"),
        (conv, (x.to_sparse(), w), {}, NotImplementedError, "input: only dense"),
        (conv, (x, w.half()), {}, RuntimeError, "weight: dtype"),
        (conv, (x, w, torch.ones(6).half()), {}, RuntimeError, "bias: dtype"),
        (conv, (x, w, torch.ones(5)), {}, RuntimeError, "bias: given weight"),
        (conv, (x, w, torch.ones(1, 6)), {}, RuntimeError, "bias: given weight"),
        (conv, (x[0, 0], w), {}, RuntimeError, "input: expected 3D"),
        (conv, (x, w[0]), {}, RuntimeError, "weight: conv2d expects 4 dimensions"),
        ("conv1d", (x, w), {}, RuntimeError, "input: expected 2D"),
        (conv, (x[:, :3], w), {}, RuntimeError, "to have 4 channels, but got 3"),
        (conv, (x[:, :, :2], w), {}, RuntimeError, "Kernel size can't be greater"),
        (conv, (x[:, :, :0], w), {"padding": 2}, RuntimeError, "input: only batches or channels may be empty"),
        (conv, (x, w[:, :, :0]), {}, RuntimeError, "weight: a kernel needs"),
        (conv, (x, w[:0]), {}, RuntimeError, "weight: given groups=1"),
        (conv, (x, w), {"stride": 0}, RuntimeError, "stride: must not be below 1"),
        (conv, (x, w), {"stride": 1.0}, TypeError, "stride: expected an int"),
        (conv, (x, w), {"stride": True}, TypeError, "stride: expected an int"),
        (conv, (x, w), {"stride": (1, 1, 1)}, RuntimeError, "stride: expected a single"),
        (conv, (x, w), {"stride": ()}, RuntimeError, "stride: expected a single"),
        (conv, (x, w), {"padding": -1}, RuntimeError, "padding: must not be negative"),
        (conv, (x, w), {"padding": "foo"}, RuntimeError, "padding: invalid padding string"),
        (conv, (x, w), {"padding": "same", "stride": 2}, RuntimeError, "padding: 'same' is not supported"),
        (conv, (x, w), {"dilation": 0}, RuntimeError, "dilation: must not be below 1"),
        (conv, (x, w), {"dilation": 4}, RuntimeError, "Kernel size can't be greater"),
        (conv, (x, w), {"groups": 0}, RuntimeError, "groups: must be at least 1"),
        (conv, (x, w), {"groups": 4}, RuntimeError, "weight: given groups=4"),
        (conv, (x, w), {"groups": 12}, RuntimeError, "weight: given groups=12"),
        (conv, (x, w), {"groups": 2}, RuntimeError, "to have 8 channels"),
        (transpose, (x, t), {"padding": "same"}, TypeError, "padding: expected an int"),
        (transpose, (x, t), {"output_padding": 1}, RuntimeError, "output_padding: must be smaller"),
        (transpose, (x, t), {"output_padding": -1, "stride": 2}, RuntimeError, "output_padding: must not be negative"),
        (transpose, (x, t), {"padding": 6}, RuntimeError, "Both must be positive"),
        (transpose, (x[:, :, :0], t), {}, RuntimeError, "Both must be positive"),
        (transpose, (x[:, :3], t), {}, RuntimeError, "to have 4 channels, but got 3"),
        (transpose, (x, t, torch.ones(5)), {}, RuntimeError, "bias: given weight"),
        (transpose, (x, t), {"groups": 3}, RuntimeError, "weight: given groups=3"),
    ]


@pytest.mark.parametrize(("call", "operands", "options", "error", "message"), _refused())
def test_bad_input(call, operands, options, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        getattr(functional, call)(*operands, **options)
    if error is not NotImplementedError:  # torch's CPU has integers and some sparse ones
        with pytest.raises(error):
            getattr(torch.nn.functional, call)(*operands, **options)


def test_bad_contracts():
    x, weight = torch.ones(2, 4, 8, 8), torch.ones(6, 4, 3, 3)
    with pytest.raises(ValueError, match="unknown contract"):
        functional.conv2d(x, weight, contract="exact")
    with pytest.raises(ValueError, match="'native' means"):
        functional.conv2d(x, weight, contract="native")
    with pytest.raises(ValueError, match="'fixed8' is not defined"):
        functional.conv2d(x.double(), weight.double(), contract="fixed8")


NAMES = [f"Conv{kind}{axes}d" for kind in ("", "Transpose") for axes in (1, 2, 3)]


@pytest.mark.parametrize("kind", NAMES)
def test_modules(kind):
    axes = int(kind[-2])
    ours, torchs = getattr(repkernels.nn, kind), getattr(torch.nn, kind)
    options = {"stride": 2, "padding": 1, "groups": 2, "dilation": 2, "bias": True}
    repkernels.manual_seed(7)
    layer = ours(4, 6, 3, **options)
    expected = torchs(4, 6, 3, **options)
    assert isinstance(layer, torchs)
    assert repr(layer) == repr(expected)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {k: v.shape for k, v in expected.state_dict().items()}
    repkernels.manual_seed(7)
    bound = 1 / np.sqrt(layer.weight.shape[1] * 3**axes)
    assert_same_bits(layer.weight, repkernels.random.uniform(layer.weight.shape, -bound, bound))
    assert_same_bits(layer.bias, repkernels.random.uniform((6,), -bound, bound))
    x = randn(2, 4, *(7,) * axes)
    layer.contract = "fixed32"
    call = getattr(functional, "conv" + kind[4:].replace("Transpose", "_transpose"))
    result = call(x, layer.weight, layer.bias, 2, 1, groups=2, dilation=2, contract="fixed32")
    assert_same_bits(layer(x), result)
    assert_same_bits(layer(x[0]), result[0])
    if "Transpose" in kind:
        assert layer(x, output_size=(16,) * axes).shape == expected(x, output_size=(16,) * axes).shape
        with pytest.raises(ValueError, match='Only `zeros`|Only "zeros"'):
            ours(4, 6, 3, padding_mode="reflect")


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes(mode):
    for axes in (1, 2, 3):
        for padding in (1, "same"):
            ours, torchs = (
                getattr(m, f"Conv{axes}d")(2, 2, 4, padding=padding, padding_mode=mode)
                for m in (repkernels.nn, torch.nn)
            )
            with torch.no_grad():
                for v in (*ours.parameters(), *torchs.parameters()):
                    v.copy_((torch.arange(v.numel()) % 5 - 2).view(v.shape))
            x = (torch.arange(2 * 5**axes) % 7 - 3).float().view(1, 2, *(5,) * axes)
            assert torch.equal(ours(x), torchs(x))


def test_tracing_is_refused():
    x, weight = _operands((2, 3, 5, 5), (4, 3, 3, 3))
    with pytest.raises(NotImplementedError, match="torch.jit.trace"):
        torch.jit.trace(functional.conv2d, (x, weight), check_trace=False)
    assert operations.conv2d is functional.conv2d
