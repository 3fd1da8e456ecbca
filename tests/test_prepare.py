"""prepare and Linear.prepare: kept digits change no bit, and stale ones are never used."""

import copy
import io
import pickle

import pytest
import torch

import repkernels
from repkernels import nn
from repkernels.nn.functional import linear
from tests.support import DEVICES, assert_same_bits, randn

KEEP = ("digits", "scales")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def quantised(device, monkeypatch):
    """The shapes that were quantised by asking the backend for digits to keep."""
    kernels, shapes = repkernels.matmul.__globals__["backend"]("matmul", device), []

    def quantize(v, digits, run=kernels.quantize):
        shapes.append(tuple(v.shape))
        return run(v, digits)

    monkeypatch.setattr(kernels, "quantize", quantize)
    return shapes


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("contract", [None, "ordered", "fixed8", "fixed16", "fixed24", "fixed32", "native"])
def test_bits_are_those_of_the_weight(device, keep, contract):
    dtype = torch.bfloat16 if contract in (None, "native") else torch.float32
    x, w = randn(2, 3, 37, dtype=dtype, device=device), randn(11, 37, dtype=dtype, device=device, seed=1)
    w[3, 5] = float("inf")
    bias = randn(11, dtype=dtype, device=device, seed=2)
    prepared = repkernels.prepare(w, contract, keep)
    expected = linear(x, w, bias, contract=contract)
    assert_same_bits(linear(x, prepared, bias), expected)
    assert_same_bits(linear(x, prepared, bias, contract=contract), expected)
    assert_same_bits(repkernels.matmul(x, prepared, bias=bias), expected)


@pytest.mark.parametrize("keep", KEEP)
def test_digits_are_made_once(quantised, device, keep):
    w = randn(5, 7, device=device)
    prepared = repkernels.prepare(w, keep=keep)
    assert quantised == [(1, 5, 7)]
    for m in (1, 3):
        linear(randn(m, 7, device=device), prepared)
    assert quantised == [(1, 5, 7)]
    with torch.inference_mode():
        linear(randn(2, 7, device=device), prepared)
    assert quantised == [(1, 5, 7)]


def _add(w):
    with torch.no_grad():
        w.add_(1)


def _copy_under_inference_mode(w):
    with torch.inference_mode():
        w.copy_(torch.full_like(w, 3))


def _new_data(w):
    w.data = w.data * 2


def _twice_new_data(w):
    """The second allocation may lie where the first memory was."""
    w.data = w.data * 2
    w.data = w.data * 2


def _own_optimizer(w):
    w.grad = torch.ones_like(w)
    repkernels.optim.SGD([w], lr=0.5).step()


def _torch_optimizer(w):
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], lr=0.5, momentum=0.9).step()


CHANGES = [_add, _copy_under_inference_mode, _new_data, _twice_new_data, _own_optimizer, _torch_optimizer]


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("change", CHANGES)
def test_stale_digits_are_never_used(device, keep, change, quantised):
    w, x = torch.nn.Parameter(randn(5, 7, device=device)), randn(3, 7, device=device, seed=1)
    prepared = repkernels.prepare(w, keep=keep)
    before = linear(x, prepared)
    change(w)
    result = linear(x, prepared)
    assert_same_bits(result, linear(x, w))
    assert not torch.equal(before, result)
    assert len(quantised) == 2
    linear(x, prepared)
    assert len(quantised) == 2


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_optimizers_count_as_changes(optimizer):
    """They write without raising the version that every other write raises."""
    layer = nn.Linear(7, 3).prepare()
    step = optimizer(layer.parameters(), lr=0.1, fused=True)
    x = randn(5, 7)
    layer(x).sum().backward()
    step.step()
    assert_same_bits(layer(x), linear(x, layer.weight, layer.bias))


def test_another_parameter_on_the_same_memory(device):
    """Its version may come to be the one that the digits were made at."""
    layer = nn.Linear(7, 3, device=device).prepare()
    x = randn(5, 7, device=device)
    layer(x)
    layer.weight = torch.nn.Parameter(layer.weight.data)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert_same_bits(layer(x), linear(x, layer.weight, layer.bias))


def test_digits_are_made_anew_where_they_lay(device):
    """A captured graph reads them there."""
    w, x = randn(5, 7, device=device), randn(3, 7, device=device, seed=1)
    prepared = repkernels.prepare(w)
    before = prepared._kept._entry.digits.planes
    w.mul_(-3)
    linear(x, prepared)
    after = prepared._kept._entry.digits.planes
    assert before.data_ptr() == after.data_ptr()


def test_the_contract_given_to_prepare_is_followed(device):
    w, x = randn(5, 70, device=device), randn(3, 70, device=device, seed=1)
    prepared = repkernels.prepare(w, "fixed8")
    coarse, fine = linear(x, w, contract="fixed8"), linear(x, w, contract="fixed24")
    assert not torch.equal(coarse, fine)
    with repkernels.contract("fixed24"):
        assert_same_bits(linear(x, prepared), coarse)
        assert_same_bits(linear(x, prepared, contract="fixed24"), fine)
        assert_same_bits(linear(x, repkernels.prepare(w)), fine)


def test_without_one_the_contract_in_force_is_followed(device, quantised):
    w, x = randn(5, 70, device=device), randn(3, 70, device=device, seed=1)
    prepared = repkernels.prepare(w)
    for contract in ("ordered", "fixed8", "fixed24", "fixed32"):
        with repkernels.contract(contract):
            assert_same_bits(linear(x, prepared), linear(x, w))


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_flow(device, keep):
    x, w = randn(3, 7, device=device).requires_grad_(), randn(5, 7, device=device, seed=1).requires_grad_()
    grad = randn(3, 5, device=device, seed=2)
    actual = torch.autograd.grad(linear(x, repkernels.prepare(w, keep=keep)), (x, w), grad)
    expected = torch.autograd.grad(linear(x, w), (x, w), grad)
    for got, want in zip(actual, expected, strict=True):
        assert_same_bits(got, want)


def test_a_weight_that_needs_no_gradient(device):
    x, w = randn(3, 7, device=device).requires_grad_(), randn(5, 7, device=device, seed=1)
    linear(x, repkernels.prepare(w)).sum().backward()
    assert x.grad is not None


def test_copies_carry_no_digits(device, quantised):
    prepared = repkernels.prepare(randn(5, 7, device=device), "fixed16", "scales")
    x = randn(3, 7, device=device, seed=1)
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert (other.contract, other.keep) == (prepared.contract, "scales")
        assert other.number != prepared.number
        assert other._kept._entry is None
        other.weight.mul_(2)
        assert_same_bits(linear(x, other), linear(x, other.weight, contract="fixed16"))
    assert_same_bits(linear(x, prepared), linear(x, prepared.weight, contract="fixed16"))


def test_digits_go_with_their_holder(device):
    import weakref

    prepared = repkernels.prepare(randn(5, 7, device=device))
    planes = weakref.ref(prepared._kept._entry.digits.planes)
    del prepared
    assert planes() is None


def test_autocast_casts_the_weight(device, quantised):
    prepared = repkernels.prepare(randn(5, 7, device=device))
    x = randn(3, 7, device=device, seed=1)
    made = len(quantised)
    with torch.autocast(device, torch.bfloat16):
        assert_same_bits(linear(x, prepared), linear(x, prepared.weight))
    assert len(quantised) == made
    linear(x, prepared)
    assert len(quantised) == made


def test_bad_weights_raise(device):
    with pytest.raises(ValueError, match=r"weight: expected \(out_features, in_features\)"):
        repkernels.prepare(randn(4, device=device))
    with torch.inference_mode():
        inference = randn(5, 7, device=device)
    with pytest.raises(ValueError, match="weight: made under inference_mode"):
        repkernels.prepare(inference)
    with pytest.raises(ValueError, match="weight: on the meta device"):
        repkernels.prepare(torch.empty(5, 7, device="meta"))
    with pytest.raises(ValueError, match="keep: expected 'digits'"):
        repkernels.prepare(randn(5, 7, device=device), keep="all")
    with pytest.raises(ValueError, match="contract: unknown"):
        repkernels.prepare(randn(5, 7, device=device), "fixed9")
    with pytest.raises(NotImplementedError, match="weight: dtype"):
        repkernels.prepare(torch.ones(5, 7, dtype=torch.int8, device=device))
    with pytest.raises(RuntimeError, match="input and weight: shapes"):
        linear(randn(3, 5, device=device), repkernels.prepare(randn(5, 7, device=device)))


class TestLinear:
    @pytest.fixture
    def layer(self, device):
        repkernels.manual_seed(0)
        return nn.Linear(7, 5, device=device)

    @pytest.fixture
    def x(self, device):
        return randn(3, 7, device=device, seed=1)

    @pytest.mark.parametrize("keep", KEEP)
    def test_training_makes_them_anew(self, layer, x, keep, quantised):
        twin = copy.deepcopy(layer)
        layer.prepare(keep)
        for module in (layer, twin):
            optimizer = repkernels.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            for _ in range(3):
                optimizer.zero_grad()
                module(x).square().sum().backward()
                optimizer.step()
        assert repkernels.digest(layer) == repkernels.digest(twin)
        assert_same_bits(layer(x), twin(x))
        layer.prepare(None)
        made = len(quantised)
        layer(x)
        assert len(quantised) == made

    def test_loading_makes_them_anew(self, layer, x):
        layer.prepare()
        for assign in (False, True):
            other = nn.Linear(7, 5, device=x.device)
            layer.load_state_dict(other.state_dict(), assign=assign)
            assert_same_bits(layer(x), other(x))
        layer.weight = torch.nn.Parameter(torch.ones_like(layer.weight))
        assert_same_bits(layer(x), linear(x, layer.weight, layer.bias))

    def test_conversion_takes_the_new_dtypes_digits(self, layer, x, quantised):
        layer.prepare().bfloat16()
        assert layer._kept.digits == 2
        assert_same_bits(layer(x.bfloat16()), linear(x.bfloat16(), layer.weight, layer.bias))
        made = len(quantised)
        layer(x.bfloat16())
        assert len(quantised) == made
        layer.to("meta")
        assert layer._kept is None

    def test_copies_carry_no_digits(self, layer, x):
        layer.prepare("scales")
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        for other in (
            copy.deepcopy(layer),
            pickle.loads(pickle.dumps(layer)),
            torch.load(buffer, weights_only=False),
        ):
            assert other._kept.keep == "scales"
            assert other._kept._entry is None
            with torch.no_grad():
                other.weight.mul_(2)
            assert_same_bits(other(x), linear(x, other.weight, other.bias))
        assert list(layer.state_dict()) == ["weight", "bias"]

    def test_the_layers_own_contract(self, layer, x):
        layer.contract = "fixed8"
        layer.prepare()
        assert layer._kept.digits == 1
        with repkernels.contract("ordered"):
            assert_same_bits(layer(x), linear(x, layer.weight, layer.bias, contract="fixed8"))

    def test_compiled_code_finds_them_when_it_runs(self, layer, x, quantised):
        layer.prepare()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            assert_same_bits(compiled(x), layer(x))
            assert len(quantised) == 1
            layer.weight.mul_(2)
            assert_same_bits(compiled(x), linear(x, layer.weight, layer.bias))
            assert len(quantised) == 2


@pytest.mark.skipif("cuda" not in DEVICES, reason="CUDA graphs need a GPU")
class TestGraphs:
    def test_a_stale_weight_is_quantised_inside_the_graph(self):
        w, x = randn(64, 64, device="cuda"), randn(4, 64, device="cuda", seed=1)
        prepared = repkernels.prepare(w)
        linear(x, prepared)
        w.mul_(2)
        graph = torch.cuda.CUDAGraph()
        linear(x, w)
        with torch.cuda.graph(graph):
            result = linear(x, prepared)
        for factor in (1, 3):
            w.mul_(factor)
            graph.replay()
            assert_same_bits(result, linear(x, w))

    def test_a_graph_sees_digits_that_were_made_anew(self):
        w, x = randn(64, 64, device="cuda"), randn(4, 64, device="cuda", seed=1)
        prepared = repkernels.prepare(w)
        linear(x, prepared)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = linear(x, prepared)
        w.mul_(3)
        linear(x, prepared)
        graph.replay()
        assert_same_bits(result, linear(x, w))
