"""convert(): what changes and what stays, contracts by name, copies and pickles, what is refused."""

import copy
import io
import pickle

import pytest
import torch

import repkernels
from repkernels import nn
from repkernels.nn.conversion import counterparts, judge
from tests.support import assert_same_bits, randn


class Scaled(torch.nn.Linear):
    """A subclass that adds an attribute."""

    def __init__(self, size):
        super().__init__(size, size)
        self.scale = 2.0

    def extra_repr(self):
        return "mine"


class Overridden(torch.nn.LayerNorm):
    def forward(self, input):
        return super().forward(input) + 1


class Block(torch.nn.Module):
    """A user's module: two tied layers, a buffer, and arithmetic of its own."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.shared = self.first
        self.norm = torch.nn.BatchNorm1d(4)
        self.scaled = Scaled(4)
        self.act = torch.nn.ReLU(inplace=True)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x):
        return self.scaled(self.norm(self.act(self.second(self.act(self.first(x))))) + self.offset)


def test_every_counterpart_is_one():
    table = counterparts()
    for theirs, ours in table.items():
        assert issubclass(ours, theirs)
        assert theirs.__module__.startswith("torch.nn.")
    for name in nn.__all__:
        theirs, ours = getattr(torch.nn, name, None), getattr(nn, name)
        if isinstance(theirs, type) and theirs is not ours:
            assert table[theirs] is ours


def test_modules_stay_the_same_objects():
    model = Block()
    modules, parameters = list(model.modules()), dict(model.named_parameters())
    keys, text = list(model.state_dict()), repr(model)
    called = []
    handles = [
        model.first.register_forward_hook(lambda *_: called.append("forward")),
        model.first.register_forward_pre_hook(lambda *_: called.append("pre")),
        model.scaled.register_full_backward_hook(lambda *_: called.append("backward")),
        model.norm.register_state_dict_post_hook(lambda *_: called.append("state")),
    ]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.norm.eval()
    assert repkernels.convert(model) is model
    assert list(model.modules()) == modules
    assert all(p is parameters[k] for k, p in model.named_parameters())
    assert repr(model) == text
    assert model.second.weight is model.first.weight
    assert not model.norm.training
    assert type(model.first) is nn.Linear
    assert type(model) is Block
    assert isinstance(model.scaled, Scaled) and isinstance(model.scaled, nn.Linear)
    model(randn(3, 4)).sum().backward()
    optimizer.step()
    assert list(model.state_dict()) == keys
    assert called == ["pre", "forward", "backward", "state"]
    for handle in handles:
        handle.remove()
    assert_same_bits(repkernels.convert(model)(randn(3, 4)), model(randn(3, 4)))  # once more changes nothing


def test_bits_are_those_of_our_modules():
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.LSTM(5, 3)), randn(2, 3, 4)
    ours = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LSTM(5, 3))
    ours.load_state_dict(model.state_dict())
    with repkernels.contract("ordered"):
        expected = ours(x)[0]
    assert_same_bits(repkernels.convert(model, "ordered")(x)[0], expected)
    assert [hasattr(m, "contract") and m.contract for m in model] == [
        repkernels.Contract("ordered", "ordered"), False, repkernels.Contract("ordered", "ordered")
    ]  # fmt: skip


def test_copies_and_pickles():
    model, x = repkernels.convert(Block(), "ordered", contracts={"scaled": ("fixed16", "fixed32")}), randn(3, 4)
    expected = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert type(other.scaled) is type(model.scaled)
        assert other.scaled.contract == ("fixed16", "fixed32")
        assert other.second.weight is other.first.weight
        assert_same_bits(other(x), expected)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16


def test_contracts_by_name():
    def model():
        return torch.nn.ModuleDict(
            {
                "body": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))),
                "head": torch.nn.MultiheadAttention(4, 2),
            }
        )

    def names(converted):
        found = (converted["body"][0], converted["body"][1][0], converted["head"], converted["head"].out_proj)
        return [m.contract and m.contract.forward for m in found]

    assert names(repkernels.convert(model())) == [None] * 4
    assert names(repkernels.convert(model(), "fixed16")) == ["fixed16"] * 4
    patterns = {"body": "fixed32", "*.0": "ordered", "body.1": "fixed8", "*.out_proj": None}
    assert names(repkernels.convert(model(), "fixed16", contracts=patterns)) == ["ordered", "fixed8", "fixed16", None]
    untouched = model()
    for contracts, message in (({"tail.*": "ordered"}, "no module that contracts has a name like 'tail"),
                               ({"body": "exact"}, r"contracts\['body'\]: unknown contract 'exact'")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            repkernels.convert(untouched, contracts=contracts)
    assert type(untouched["body"][0]) is torch.nn.Linear
    with pytest.raises(ValueError, match="one module has the names first, shared"):
        repkernels.convert(Block(), "ordered", contracts={"shared": "fixed24"})


@pytest.mark.parametrize("kind", ["parametrized", "hook"])
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_reparametrised_weights(kind, norm):
    module = torch.nn.utils if kind == "hook" else torch.nn.utils.parametrizations

    def make(dtype=torch.float32):
        torch.manual_seed(1)
        return getattr(module, norm)(torch.nn.Linear(4, 5, dtype=dtype))

    model, theirs, x = make(), make(), randn(3, 4)
    keys = list(model.state_dict())
    repkernels.convert(model)
    assert isinstance(model, nn.Linear)
    assert list(model.state_dict()) == keys
    results = []
    for m in (model, theirs):
        y = m(x)
        results.append([y, *torch.autograd.grad(y.sin().sum(), list(m.parameters()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    model.eval(), theirs.eval()
    torch.testing.assert_close(model(x), theirs(x))
    if kind == "parametrized":
        assert_same_bits(copy.deepcopy(model)(x), model(x))
        torch.nn.utils.parametrize.remove_parametrizations(model, "weight")
        assert type(model) is nn.Linear


def test_what_is_refused():
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2), Overridden(2), torch.nn.SyncBatchNorm(2), torch.nn.LazyLinear(2), torch.nn.ReLU()
    )
    model[4].forward = lambda x: x
    before = [type(m) for m in model.modules()]
    with pytest.raises(NotImplementedError) as caught:
        repkernels.convert(model)
    assert isinstance(caught.value, repkernels.UnsupportedModules)
    assert list(caught.value.reasons) == ["1", "2", "3", "4"]
    for part in (
        "1: tests.test_convert.Overridden: it has its own forward in place of LayerNorm's",
        "2: torch.nn.modules.batchnorm.SyncBatchNorm: it adds statistics across processes",
        "3: torch.nn.modules.linear.LazyLinear: it has no parameters yet",
        "allow=('1', '2', '3', '4')",
    ):
        assert part in str(caught.value)
    assert [type(m) for m in model.modules()] == before
    repkernels.convert(model, allow=["[1-3]", "4"])
    assert [type(m) for m in model] == [nn.Linear, *before[2:]]
    encoder = torch.nn.TransformerEncoderLayer(4, 2, 8, activation=lambda x: x * x)
    with pytest.raises(NotImplementedError, match="its activation .* is no function of repkernels.nn.functional"):
        repkernels.convert(encoder)
    with pytest.raises(NotImplementedError, match="convert the module inside of it"):
        repkernels.convert(torch.nn.DataParallel(torch.nn.Linear(2, 2)))
    with pytest.raises(NotImplementedError, match="then torch.compile it"):
        repkernels.convert(torch.compile(torch.nn.Linear(2, 2)))
    with pytest.raises(NotImplementedError, match="max_norm"):
        repkernels.convert(torch.nn.Embedding(3, 2, max_norm=1.0))
    with pytest.raises(TypeError, match="model: expected a torch.nn.Module, got str"):
        repkernels.convert("model")


def test_a_users_layer_of_ours_is_left_alone():
    class Mine(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    layer = Mine(2, 2)
    assert judge(layer) is None
    assert type(repkernels.convert(layer)) is Mine


def test_results_may_be_changed_in_place():
    """torch's models have ReLU(inplace=True) behind linear layers."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(True), torch.nn.Linear(5, 3), torch.nn.SiLU(True))
    other = copy.deepcopy(model)
    other[1].inplace = other[3].inplace = False
    x = randn(2, 4)
    found = [repkernels.convert(m) for m in (model, other)]
    for m in found:
        m(x).square().sum().backward()
    for a, b in zip(*(m.parameters() for m in found), strict=True):
        assert_same_bits(a.grad, b.grad)
