"""nn and nn.functional: torch's signatures and state, the reference's bits."""

import inspect
import math

import pytest
import torch

import repkernels
from reference import cross_entropy as reference_loss
from reference import matmul as reference
from reference import philox
from reference import relu as reference_relu
from repkernels import nn
from repkernels.nn import functional as F
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

HALF = (torch.bfloat16, torch.float16)


def _names(function):
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.kind != p.KEYWORD_ONLY]


@pytest.mark.parametrize("module", ["Linear", "ReLU", "CrossEntropyLoss"])
def test_modules_have_torchs_signatures(module):
    assert _names(getattr(nn, module)) == _names(getattr(torch.nn, module))


@pytest.mark.parametrize("function", ["relu", "cross_entropy"])
def test_functions_have_torchs_signatures(function):
    assert _names(getattr(F, function)) == _names(getattr(torch.nn.functional, function))


class TestLinear:
    def test_initial_bits(self):
        repkernels.manual_seed(7)
        layers = [nn.Linear(6, 4), nn.Linear(4, 3, bias=False), nn.Linear(3, 2)]
        streams = iter(range(5))
        for layer in layers:
            bound = 1 / math.sqrt(layer.in_features)
            for p in layer.parameters():
                expected = philox.uniform(7, next(streams), p.numel(), -bound, bound).reshape(p.shape)
                assert_same_bits(p.data, tensor(expected, torch.float32))

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF, torch.float64])
    def test_initial_bits_do_not_depend_on_device_and_round_to_the_dtype(self, device, dtype):
        repkernels.manual_seed(7)
        wide = nn.Linear(6, 4)
        repkernels.manual_seed(7)
        layer = nn.Linear(6, 4, device=device, dtype=dtype)
        assert_same_bits(layer.weight.cpu(), wide.weight.to(dtype))
        assert_same_bits(layer.bias.cpu(), wide.bias.to(dtype))

    def test_the_meta_device_takes_its_streams(self):
        repkernels.manual_seed(7)
        nn.Linear(6, 4, device="meta")
        assert repkernels.random.get_state()["stream"] == 2

    def test_state_dict_is_torchs(self):
        ours, theirs = nn.Linear(6, 4), torch.nn.Linear(6, 4)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        ours.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(ours.state_dict())
        assert isinstance(ours, torch.nn.Linear)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF])
    def test_forward_is_the_reference(self, device, dtype):
        layer, x = nn.Linear(7, 5, device=device, dtype=dtype), randn(2, 3, 7, dtype=dtype, device=device)
        rule = {torch.float32: "fixed24"}.get(dtype, "fixed16")
        expected = reference.linear(values(x), values(layer.weight), values(layer.bias), name(dtype), rule)
        assert_same_bits(layer(x).cpu(), tensor(expected, dtype))

    def test_no_inputs(self):
        layer = nn.Linear(0, 3)
        assert_same_bits(layer(torch.empty(2, 0)), layer.bias.detach().expand(2, 3).contiguous())

    def test_one_dimensional_weights(self):
        x, w = randn(3, 7), randn(7, seed=1)
        assert_same_bits(F.linear(x, w, torch.tensor(0.5)), F.linear(x, w[None], torch.tensor([0.5]))[:, 0])

    def test_bad_input(self):
        with pytest.raises(RuntimeError, match=r"input and weight: shapes \(3, 4\) and \(5, 7\) do not fit"):
            F.linear(randn(3, 4), randn(5, 7))
        with pytest.raises(RuntimeError, match="weight: expected 1 or 2 dimensions"):
            F.linear(randn(3, 4), randn(2, 5, 4))
        with pytest.raises(RuntimeError, match="weight: dtype torch.float64 differs from input's"):
            F.linear(randn(3, 4), randn(5, 4).double())
        with pytest.raises(RuntimeError, match=r"bias: expected shape \(5,\), one per column of weight"):
            F.linear(randn(3, 4), randn(5, 4), randn(4))


class TestInit:
    def test_uniform_draws_one_stream(self):
        repkernels.manual_seed(5)
        p = torch.nn.Parameter(torch.empty(3, 4))
        assert nn.init.uniform_(p, -2.0, 3.0) is p
        assert_same_bits(p.data, tensor(philox.uniform(5, 0, 12, -2.0, 3.0).reshape(3, 4), torch.float32))

    @pytest.mark.parametrize("mode", ["fan_in", "fan_out"])
    def test_kaiming_uniform(self, mode):
        repkernels.manual_seed(5)
        w = nn.init.kaiming_uniform_(torch.empty(6, 4), a=math.sqrt(5), mode=mode)
        bound = math.sqrt(3 / (4 if mode == "fan_in" else 6)) * math.sqrt(2 / 6)
        assert_same_bits(w, tensor(philox.uniform(5, 0, 24, -bound, bound).reshape(6, 4), torch.float32))
        assert nn.init.kaiming_uniform_(torch.empty(0, 4)).shape == (0, 4)


class TestRelu:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF, torch.float64])
    def test_selects(self, device, dtype):
        x = torch.tensor([-1.0, -0.0, 0.0, 2.0, float("nan"), float("inf"), -float("inf"), 2.0**-24, -(2.0**-24)])
        x = x.to(device, dtype).requires_grad_()
        grad = torch.tensor([1.0, 2.0, 3.0, -4.0, 5.0, float("nan"), float("nan"), -0.0, 7.0]).to(device, dtype)
        result = F.relu(x)
        assert_same_bits(result.cpu(), tensor(reference_relu.forward(values(x)), dtype))
        (actual,) = torch.autograd.grad(result, x, grad)
        expected = torch.where((x.cpu() > 0) | x.cpu().isnan(), grad.cpu(), torch.zeros((), dtype=dtype))
        assert_same_bits(actual.cpu(), expected.detach())
        assert_same_bits(nn.ReLU()(x), result)

    def test_subnormals_survive_flushing(self):
        x = torch.tensor([1e-40, -1e-40])
        if not torch.set_flush_denormal(True):
            pytest.skip("this CPU cannot flush")
        try:
            result = F.relu(x)
        finally:
            torch.set_flush_denormal(False)
        assert_same_bits(result, torch.tensor([1e-40, 0.0]))

    def test_under_vmap_and_grad(self):
        x = randn(4, 3)
        assert_same_bits(torch.func.vmap(F.relu)(x), F.relu(x))
        assert_same_bits(torch.func.grad(lambda x: F.relu(x).sum())(x), (x > 0).float())

    def test_in_place(self):
        x = torch.tensor([-1.0, 2.0])
        assert F.relu(x, inplace=True) is x
        assert_same_bits(x, torch.tensor([0.0, 2.0]))
        assert nn.ReLU(inplace=True)(x) is x


class TestCrossEntropy:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF])
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize(("rows", "classes"), [(1, 1), (7, 10), (70, 3), (3, 2000)])
    def test_bits(self, device, dtype, reduction, rows, classes):
        x = (randn(rows, classes, dtype=dtype, device=device) * 8).requires_grad_()
        target = (torch.arange(rows, device=device) * 7) % classes
        loss = F.cross_entropy(x, target, reduction=reduction)
        arguments = values(x), target.cpu().numpy(), name(dtype), reduction
        assert_same_bits(loss.cpu(), tensor(reference_loss.forward(*arguments), dtype))
        grad = torch.full_like(loss, 0.75)
        (actual,) = torch.autograd.grad(loss, x, grad)
        assert_same_bits(actual.cpu(), tensor(reference_loss.backward(values(grad), *arguments), dtype))

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_ignored_rows_do_not_count(self, reduction):
        x = randn(6, 5)
        x[1], x[4, 0] = float("nan"), float("inf")
        target = torch.tensor([0, -100, 2, 3, -100, 1])
        kept = target != -100
        x.requires_grad_()
        loss = F.cross_entropy(x, target, reduction=reduction)
        small = x.detach()[kept].requires_grad_()
        expected = F.cross_entropy(small, target[kept], reduction=reduction)
        assert_same_bits(loss[kept] if reduction == "none" else loss, expected)
        loss.sum().backward()
        expected.sum().backward()
        assert_same_bits(x.grad[kept], small.grad)
        assert_same_bits(x.grad[~kept], torch.zeros(2, 5))
        assert_same_bits(nn.CrossEntropyLoss(reduction=reduction, ignore_index=-100)(x, target), loss)

    def test_all_ignored(self):
        x, target = randn(3, 4), torch.full((3,), 2)
        assert F.cross_entropy(x, target, ignore_index=2).isnan()
        assert_same_bits(F.cross_entropy(x, target, ignore_index=2, reduction="sum"), torch.tensor(0.0))

    @pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2), (2, 4, 3, 5), (0, 4)])
    def test_shapes_as_torch(self, shape):
        x = randn(*shape).requires_grad_()
        target_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
        target = torch.arange(math.prod(target_shape)).reshape(target_shape) % 4
        for reduction in ("mean", "sum", "none"):
            ours = F.cross_entropy(x, target, reduction=reduction)
            theirs = torch.nn.functional.cross_entropy(x, target, reduction=reduction)
            torch.testing.assert_close(ours, theirs, equal_nan=True)
            grads = [torch.autograd.grad(loss.sum(), x)[0] for loss in (ours, theirs)]
            torch.testing.assert_close(*grads, equal_nan=True)

    def test_expanded_and_strided_input(self):
        wide = randn(6, 10)
        target = torch.arange(6) % 5
        for x in (wide[:, ::2], wide.t()[:5].t(), wide[:1, :5].expand(6, 5)):
            assert_same_bits(F.cross_entropy(x, target), F.cross_entropy(x.contiguous(), target))
        assert_same_bits(F.cross_entropy(wide, target.expand(2, 6)[1]), F.cross_entropy(wide, target))

    def test_autocast_gives_fp32(self):
        x, target = randn(3, 4, dtype=torch.bfloat16), torch.tensor([0, 1, 2])
        with torch.autocast("cpu", torch.bfloat16):
            assert_same_bits(F.cross_entropy(x, target), F.cross_entropy(x.float(), target))

    def test_wrong_targets_raise_before_any_launch(self):
        for wrong in (4, -1):
            with pytest.raises(IndexError, match=f"target: class {wrong} is out of range; expected 0 <= target < 4"):
                F.cross_entropy(randn(3, 4), torch.tensor([0, wrong, 1]))

    @pytest.mark.parametrize(
        ("x", "target", "options", "error", "message"),
        [
            (torch.ones(3, 4), torch.ones(2).long(), {}, RuntimeError, r"target: expected shape \(3,\) for input"),
            (torch.ones(3, 4), torch.ones(3).int(), {}, RuntimeError, "target: expected int64"),
            (torch.ones(3, 4), torch.ones(3, 5), {}, RuntimeError, "target: expected probabilities of input's shape"),
            (torch.ones(3, 4), [0, 1, 2], {}, TypeError, "target: expected a Tensor"),
            (torch.ones(3, 4).double(), torch.ones(3).long(), {}, NotImplementedError, "input: dtype torch.float64"),
            (torch.ones(3, 4).long(), torch.ones(3).long(), {}, NotImplementedError, "input: dtype torch.int64"),
            (torch.ones(3, 4), torch.ones(3, device="meta").long(), {}, RuntimeError, "target: on meta but input"),
            (torch.ones(()), torch.ones(()).long(), {}, RuntimeError, "input: expected"),
            (torch.ones(3, 0), torch.ones(3).long(), {}, RuntimeError, "input: no classes"),
            (torch.ones(3, 4), torch.ones(3).long(), {"weight": torch.ones(3)}, RuntimeError, "^weight"),
            (torch.ones(3, 4), torch.ones(3).long(), {"label_smoothing": 1.1}, RuntimeError, "^label_smoothing"),
            (torch.ones(3, 4), torch.ones(3).long(), {"reduce": True}, NotImplementedError, "reduce"),
            (torch.ones(3, 4), torch.ones(3).long(), {"reduction": "max"}, ValueError, "^reduction: expected"),
        ],
    )
    def test_bad_input(self, x, target, options, error, message):
        with pytest.raises(error, match=message):
            F.cross_entropy(x, target, **options)


def test_sequential_and_flatten_are_torchs():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU())
    assert model(randn(2, 2, 3)).shape == (2, 4)
    assert isinstance(model, torch.nn.Sequential)


def test_relu_in_place_over_what_autograd_keeps() -> None:
    x = torch.tensor([-1.0, 2.0, -0.0, float("nan")], requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        F.relu(x, inplace=True)
    assert x[0] == -1  # refused before anything was written
    for over in (lambda y: y, lambda y: y[1:3]):  # itself, and a view of it
        y = x * 1
        F.relu(over(y), inplace=True)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        inside = torch.zeros(4, dtype=torch.bool)
        over(inside).fill_(True)
        assert torch.equal(gradient, ((x.detach() > 0) | x.detach().isnan() | ~inside).float())
