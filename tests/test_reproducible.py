"""reproducible(): the bits of converted models from plain torch code, and refusals of what has none."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import repkernels
from repkernels import NotReproducible, NotReproducibleWarning, reproducible
from repkernels.reproducible.safe import SAFE
from repkernels.reproducible.tables import _OURS
from tests.support import assert_same_bits, randn

X, Y = randn(6, 8, seed=1), torch.arange(6) % 4


class Net(nn.Module):
    """Modules, functions, operators and methods, of the kinds that models are written with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 4)
        self.norm, self.drop = nn.LayerNorm(12), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(F.gelu(self.norm(self.first(x))))
        scores = (h @ h.transpose(0, 1) / 3.0).softmax(-1)
        h = h + torch.matmul(scores, h)
        return self.last(h - h.mean(-1, keepdim=True))


def models() -> tuple[nn.Module, nn.Module]:
    """The same model plain and converted."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = Net()
    return plain, repkernels.convert(copy.deepcopy(plain))


def train(model: nn.Module, make: Callable[[Any], torch.optim.Optimizer], loss: Callable[..., Tensor]) -> str:
    repkernels.manual_seed(3)
    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(X), Y).backward()
        optimizer.step()
    return repkernels.digest(model)


def test_plain_torch_has_the_bits_of_a_converted_model_with_our_optimizer() -> None:
    plain, converted = models()
    with reproducible():
        mine = train(plain, torch.optim.AdamW, F.cross_entropy)
        # The operators between its modules are torch's, so a converted model wants the block too.
        theirs = train(converted, repkernels.optim.AdamW, repkernels.nn.functional.cross_entropy)
    assert mine == theirs


def test_modules_alone_need_no_block_when_converted() -> None:
    plain = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 4))
    converted = repkernels.convert(copy.deepcopy(plain))
    with reproducible():
        mine = train(plain, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), F.cross_entropy)
    ours = repkernels.nn.functional.cross_entropy
    theirs = train(converted, lambda p: repkernels.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), ours)
    assert mine == theirs


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_every_form_of_an_optimizer_takes_the_same_step(options: dict[str, bool]) -> None:
    results = []
    for kwargs in (options, {}):
        p = nn.Parameter(X.clone())
        p.grad = X.flip(0)
        optimizer = torch.optim.Adam([p], lr=0.1, weight_decay=0.1, **kwargs)
        before = copy.deepcopy(optimizer.param_groups[0]) | {"params": None}
        with reproducible():
            optimizer.step()
        assert optimizer.param_groups[0] | {"params": None} == before
        results.append(p)
    assert_same_bits(*results)


def test_contract_forward_and_gradient_and_nesting() -> None:
    a, w = randn(4, 300, seed=2).requires_grad_(), randn(300, 5, seed=3)
    with reproducible("ordered"):
        outer = a @ w
        with reproducible(("fixed8", "fixed32")):
            inner = a @ w
            inner.sum().backward()
        again = a @ w
    assert_same_bits(outer, repkernels.matmul(a, w, contract="ordered"))
    assert_same_bits(again, outer)
    mine, a.grad = a.grad, None
    expected = repkernels.matmul(a, w, contract=("fixed8", "fixed32"))
    assert_same_bits(inner, expected)
    expected.sum().backward()
    assert_same_bits(mine, a.grad)


def test_products_that_autograd_makes_follow_the_gradient_contract() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(w)
            return a @ w

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return grad @ ctx.saved_tensors[0].t(), None

    a, w = randn(4, 30, seed=2).requires_grad_(), randn(30, 50, seed=3)
    g = randn(4, 50, seed=4)
    gradients = []
    with reproducible(("fixed8", "fixed24")):
        for y in (Product.apply(a, w), torch.einsum("ik,kj->ij", a, w), a @ w):
            gradients.append(torch.autograd.grad(y, a, g)[0])
    for found in gradients:
        assert_same_bits(found, repkernels.matmul(g, w.t(), contract="fixed24"))


def test_a_checkpoint_runs_again_under_the_forward_contract() -> None:
    w = randn(8, 8, seed=5).requires_grad_()

    def function(x: Tensor) -> Tensor:
        return torch.einsum("ij,jk->ik", x.tanh(), w).sigmoid() @ w

    found = []
    for reentrant in (None, False, True):
        x = X.clone().requires_grad_()
        with reproducible(("fixed8", "fixed32")):
            y = function(x) if reentrant is None else checkpoint(function, x, use_reentrant=reentrant)
            y.sum().backward()
        found.append((x.grad, w.grad))
        w.grad = None
    for pair in found[1:]:
        for one, other in zip(pair, found[0], strict=True):
            assert_same_bits(one, other)


def test_a_graph_recorded_outside_runs_backward_on_our_operations() -> None:
    plain, _ = models()
    plain.eval()
    loss = F.cross_entropy(plain(X), Y) + F.mse_loss(plain(X).sigmoid(), torch.zeros(6, 4))
    with reproducible():
        loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in plain.parameters())


def test_autocast() -> None:
    plain = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4))
    converted = repkernels.convert(copy.deepcopy(plain))
    for model in (plain, converted):
        with reproducible(), torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(model(X), Y).backward()
    for p, q in zip(plain.parameters(), converted.parameters(), strict=True):
        assert_same_bits(p.grad, q.grad)


def test_in_place_out_and_list_forms() -> None:
    x = X[0]
    with reproducible():
        written = x.clone().exp_()
        out = torch.exp(x, out=torch.empty(0))
        (listed,) = torch._foreach_exp([x])
        recorded = x.clone().requires_grad_()
        recorded.clone().tanh_().sum().backward()
        pair = [x.clone(), x.clone()]
        torch._foreach_addcdiv_(pair, pair, [x.abs() + 1] * 2, value=0.3)
    expected = repkernels.exp(x)
    for found in (written, out, listed):
        assert_same_bits(found, expected)
    leaf = x.clone().requires_grad_()
    repkernels.tanh(leaf).sum().backward()
    assert_same_bits(recorded.grad, leaf.grad)
    for found in pair:
        assert_same_bits(found, repkernels.addcdiv(x, x, x.abs() + 1, value=0.3))


def test_a_scaled_sum_rounds_the_product_and_a_number_beside_a_half_tensor_stays_exact() -> None:
    x, y = X.bfloat16(), X.flip(0).bfloat16()
    with reproducible():
        assert_same_bits(X.add(X.flip(0), alpha=0.3), X + X.flip(0) * 0.3)
        assert_same_bits(x.add(y, alpha=0.3), (x.float() + y.float() * 0.3).bfloat16())
        assert_same_bits(x + 0.1, (x.float() + 0.1).bfloat16())
    assert not torch.equal(x + 0.1, (x.float() + 0.1).bfloat16())  # torch on a CPU; on a GPU they are equal


def test_random_numbers_are_ours() -> None:
    repkernels.manual_seed(7)
    with reproducible():
        found = [
            torch.rand(5),
            torch.randn(5),
            torch.empty(5).uniform_(-1, 1),
            torch.randperm(5),
            torch.randint(9, (5,)),
        ]
        kept = F.dropout(torch.ones(8), 0.5)
    repkernels.manual_seed(7)
    draw = repkernels.random
    expected = [draw.uniform(5), draw.normal(5), draw.uniform(5, -1, 1), draw.permutation(5), draw.randint(0, 9, 5)]
    for one, other in zip([*found, kept], [*expected, repkernels.nn.functional.dropout(torch.ones(8))], strict=True):
        assert_same_bits(one, other)
    with reproducible(), pytest.raises(NotReproducible, match="torch.Generator"):
        torch.randn(3, generator=torch.Generator())


def test_normal_numbers_written_in_place() -> None:
    repkernels.manual_seed(3)
    with reproducible():
        filled, plain = torch.full((5,), float("nan")).normal_(1.0, 0.5), torch.full((5,), float("nan")).normal_()
    repkernels.manual_seed(3)
    assert_same_bits(filled, repkernels.random.normal((5,), 1.0, 0.5))
    assert_same_bits(plain, repkernels.random.normal((5,)))


def test_places_written_twice_keep_the_last_value_and_sums_the_rule() -> None:
    index = torch.tensor([2, 0, 2, 2, 1])
    values = randn(5, seed=8)
    with reproducible():
        x = torch.zeros(3)
        x[index] = values
        y = torch.zeros(3).scatter(0, index, values)
        z = torch.zeros(3).index_put_((index,), values, accumulate=True)
    assert_same_bits(x, values[[1, 4, 3]])
    assert_same_bits(y, x)
    assert_same_bits(z, repkernels.index_add(torch.zeros(3), 0, index, values))


def test_unknown_operations_are_refused_with_name_and_line() -> None:
    with reproducible(), pytest.raises(NotReproducible, match=r"aten\._linalg_svd.*test_reproducible\.py:\d+"):
        torch.linalg.svd(X)
    x = X[:4, :4].clone().requires_grad_()
    y = torch.special.i0(x)
    with reproducible(), pytest.raises(NotReproducible, match=r"aten\.special_i1.*in the gradient"):
        y.sum().backward()
    with reproducible(), pytest.raises(NotReproducible, match="float64"):
        X.double().exp()


def test_not_strict_warns_once_and_lets_torch_run() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with reproducible(strict=False):
            found = [torch.special.i0(X) for _ in range(2)]
    assert [w.category for w in caught] == [NotReproducibleWarning]
    assert_same_bits(found[1], torch.special.i0(X))


def test_compiled_functions_run_uncompiled() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend)
    def function(x: Tensor) -> Tensor:
        return x.exp()

    with reproducible():
        assert_same_bits(function(X[0]), repkernels.exp(X[0]))
    assert not graphs


def test_it_decorates_and_leaves_nothing_behind() -> None:
    @reproducible()
    def function(x: Tensor) -> Tensor:
        return x.exp()

    assert_same_bits(function(X[0]), repkernels.exp(X[0]))
    with pytest.raises(ZeroDivisionError), reproducible():
        1 / 0  # noqa: B018
    assert not torch._C._len_torch_dispatch_stack()
    assert torch._C._len_torch_function_stack() == 0
    assert repkernels.get_contract() is None


def test_flushed_subnormals_are_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush")
    try:
        with pytest.raises(RuntimeError, match="subnormals"):
            reproducible().__enter__()
    finally:
        torch.set_flush_denormal(False)


def test_gradients_of_several_consumers_add_up_from_the_last_one_made() -> None:
    """autograd's order, of torch 2.11 and 2.13: the consumer that was made last comes first."""
    for factors, total in (((2.0**24, 1.0, 1.0), 2.0**24 + 2), ((1.0, 1.0, 2.0**24), 2.0**24)):
        x = torch.ones((), requires_grad=True)
        with reproducible():
            a, b, c = (x * factor for factor in factors)
            (a + b + c).backward()
        assert x.grad == total


def test_tables_name_operations_of_aten_and_do_not_overlap() -> None:
    assert not set(SAFE) & set(_OURS)
    for name in (*SAFE, *_OURS):
        base = name.split(".")[0]
        assert any(hasattr(torch.ops.aten, n) for n in (base, f"{base}_", f"{base}_functional")), name


@pytest.mark.parametrize("family", ["convolution", "recurrent", "attention"])
def test_layers_below_and_above_autograd(family: str) -> None:
    module, x = {
        "convolution": (nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)), (2, 2, 6, 6)),
        "recurrent": (nn.LSTM(3, 4, batch_first=True), (2, 5, 3)),
        "attention": (nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), (2, 5, 8)),
    }[family]
    converted = repkernels.convert(copy.deepcopy(module))
    found = []
    for model in (module, converted):
        operand = randn(*x, seed=9)
        with reproducible():
            y = model(operand)
            (y[0] if isinstance(y, tuple) else y).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other)
