"""Distances, losses of margins and likelihoods, adaptive softmax, rrelu: bits of the reference, torch's values."""

import math

import pytest
import torch

import repkernels
from reference import margin_losses as reference
from reference import philox
from repkernels import nn
from repkernels.nn import functional as F
from tests.support import assert_same_bits, name, randn, tensor, values

X, Y, Z = (randn(6, 5, seed=s) for s in range(3))
SIGNS = torch.where(randn(6, 5, seed=3) > 0, 1.0, -1.0)
ONE_SIGN = SIGNS[:, 0].contiguous()
CLASSES = torch.tensor([0, 4, 2, 2, 1, 3])
SETS = torch.tensor([[3, 0, -1, 1, 1], [1, -1, 0, 0, 0], [-1] * 5, [4, 3, 2, 1, 0], [2, 2, -1, 0, 1], [0, 4, 1, -1, 3]])

# Module arguments, operands that take a gradient, the others, the reference's arguments.
LOSSES = {
    "HingeEmbeddingLoss": ({"margin": 0.7}, [X], [SIGNS], (0.7,)),
    "MarginRankingLoss": ({"margin": 0.3}, [X, Y], [SIGNS], (0.3,)),
    "SoftMarginLoss": ({}, [X * 8], [SIGNS], ()),
    "MultiLabelSoftMarginLoss": ({"weight": Z[0].abs()}, [X], [(SIGNS + 1) / 2], (Z[0].abs().numpy(),)),
    "MultiMarginLoss": ({"p": 2, "margin": 0.5}, [X], [CLASSES], (2, 0.5)),
    "MultiLabelMarginLoss": ({}, [X], [SETS], ()),
    "CosineEmbeddingLoss": ({"margin": 0.1}, [X, Y], [ONE_SIGN], (0.1,)),
    "TripletMarginLoss": ({"margin": 0.4, "swap": True}, [X, Y, Z], [], (0.4, True)),
    "TripletMarginWithDistanceLoss": ({"margin": 0.4}, [X, Y, Z], [], (0.4, False)),
    "PoissonNLLLoss": ({"full": True}, [X], [Y.abs() * 3], (True, True, 1e-8)),
    "GaussianNLLLoss": ({"full": True, "eps": 0.2}, [X, Y, Z.abs()], [], (True, 0.2)),
}
NAMES = {
    "HingeEmbeddingLoss": "hinge_embedding_loss", "MarginRankingLoss": "margin_ranking_loss",
    "SoftMarginLoss": "soft_margin_loss", "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss", "MultiLabelMarginLoss": "multilabel_margin_loss",
    "CosineEmbeddingLoss": "cosine_embedding_loss", "TripletMarginLoss": "triplet_margin_loss",
    "TripletMarginWithDistanceLoss": "triplet_margin_loss", "PoissonNLLLoss": "poisson_nll_loss",
    "GaussianNLLLoss": "gaussian_nll_loss",
}  # fmt: skip


@pytest.mark.parametrize("kind", LOSSES)
def test_losses(kind):
    options, operands, rest, arguments = LOSSES[kind]
    ours, theirs = getattr(nn, kind)(**options), getattr(torch.nn, kind)(**options)
    assert repr(ours) == repr(theirs)
    inputs = [x.clone().requires_grad_() for x in operands]
    for reduction in ("mean", "sum", "none"):
        ours.reduction = theirs.reduction = reduction
        found = [m(*inputs, *rest) for m in (ours, theirs)]
        torch.testing.assert_close(*found)
        grads = [torch.autograd.grad(y.sin().sum(), inputs) for y in found]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    arrays = [v.numpy() for v in (*operands, *rest)]
    wanted = getattr(reference, NAMES[kind])(*arrays, *arguments)
    assert_same_bits(found[0], tensor(wanted, torch.float32))
    if kind not in ("TripletMarginWithDistanceLoss", "MultiLabelSoftMarginLoss"):
        short = [x.bfloat16() if x.is_floating_point() else x for x in (*operands, *rest)]
        arrays = [values(x) if x.is_floating_point() else x.numpy() for x in short]
        wanted = getattr(reference, NAMES[kind])(*arrays, *arguments)
        assert_same_bits(ours(*short), tensor(wanted, torch.bfloat16))


@pytest.mark.parametrize("function", ["pairwise_distance", "cosine_similarity"])
def test_distances(function):
    modules = {"pairwise_distance": "PairwiseDistance", "cosine_similarity": "CosineSimilarity"}
    found = getattr(F, function)(X, Y)
    assert_same_bits(found, tensor(getattr(reference, function)(values(X), values(Y)), torch.float32))
    torch.testing.assert_close(found, getattr(torch.nn.functional, function)(X, Y))
    assert_same_bits(getattr(nn, modules[function])()(X, Y), found)
    x, row = X.clone().requires_grad_(), Y[:1].clone().requires_grad_()
    grads = [torch.autograd.grad(getattr(f, function)(x, row).sin().sum(), (x, row)) for f in (F, torch.nn.functional)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_normalize():
    torch.testing.assert_close(F.normalize(X), torch.nn.functional.normalize(X))
    assert_same_bits(F.normalize(torch.zeros(2, 3)), torch.zeros(2, 3))
    x = X.bfloat16()
    wanted = values(x) / (values(x) ** 2).sum(1, keepdims=True) ** 0.5
    torch.testing.assert_close(F.normalize(x), tensor(wanted, torch.bfloat16))


def test_local_response_norm():
    for shape in ((2, 5, 4), (2, 5, 3, 4)):
        x = randn(*shape).requires_grad_()
        found = [m(3, 0.5)(x) for m in (nn.LocalResponseNorm, torch.nn.LocalResponseNorm)]
        torch.testing.assert_close(*found)
        torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in found))


def test_rrelu():
    layer, x = nn.RReLU(0.1, 0.4), X.clone().requires_grad_()
    repkernels.manual_seed(4)
    y = layer(x)
    slopes = tensor(philox.uniform(4, 0, 30, 0.1, 0.4).reshape(6, 5), torch.float32)
    assert_same_bits(y, torch.where(X > 0, X, X * slopes))
    assert_same_bits(torch.autograd.grad(y.sum(), x)[0], torch.where(X > 0, 1.0, slopes))
    assert repkernels.random.get_state()["stream"] == 1
    assert_same_bits(layer.eval()(X), F.leaky_relu(X, (0.1 + 0.4) / 2))


def test_adaptive_log_softmax():
    theirs, ours = (m(5, 10, [3, 6], head_bias=True) for m in (
        torch.nn.AdaptiveLogSoftmaxWithLoss, nn.AdaptiveLogSoftmaxWithLoss
    ))  # fmt: skip
    ours.load_state_dict(theirs.state_dict())
    x, target = X.clone().requires_grad_(), torch.tensor([0, 9, 4, 2, 6, 3])
    grads = []
    for m in (ours, theirs):
        output, loss = m(x, target)
        grads.append([output, loss, m.log_prob(x), *torch.autograd.grad(loss, [x, *m.parameters()])])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert (ours.predict(x) == theirs.predict(x)).all()
    assert type(ours.head) is nn.Linear
    with pytest.raises(RuntimeError, match=r"Target values should be in \[0, 9\]"):
        ours(x, target + 1)


def test_bad_input():
    with pytest.raises(NotImplementedError, match="x1: dtype torch.int64"):
        F.pairwise_distance(X.long(), Y)
    with pytest.raises(RuntimeError, match="x2: on meta but x1 is on cpu"):
        F.cosine_similarity(X, Y.to("meta"))
    with pytest.raises(ValueError, match="only p == 1 and p == 2"):
        F.multi_margin_loss(X, CLASSES, p=3)
    with pytest.raises(RuntimeError, match="target: expected one class for each row"):
        F.multi_margin_loss(X, CLASSES[:3])
    with pytest.raises(RuntimeError, match="target: index 7 is out of range"):
        F.multi_margin_loss(X, CLASSES + 3)
    with pytest.raises(RuntimeError, match="weight: expected shape"):
        F.multi_margin_loss(X, CLASSES, weight=X[0, :2])
    with pytest.raises(RuntimeError, match="target: index 5 is out of range"):
        F.multilabel_margin_loss(X, SETS + 1)
    with pytest.raises(NotImplementedError, match="target: dtype torch.float32"):
        F.multilabel_margin_loss(X, X)
    with pytest.raises(RuntimeError, match="input: expected classes"):
        F.multilabel_margin_loss(X[:, :0], SETS[:, :0])
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        F.triplet_margin_loss(X, Y[0], Z)
    with pytest.raises(RuntimeError, match="input, target: shapes .* do not broadcast"):
        F.hinge_embedding_loss(X, SIGNS[:, :3])
    with pytest.raises(TypeError, match="var: expected"):
        F.gaussian_nll_loss(X, Y, 1)
    with pytest.raises(ValueError, match="margin must be greater than 0"):
        F.triplet_margin_loss(X, Y, Z, margin=0)
    with pytest.raises(ValueError, match="var has negative"):
        F.gaussian_nll_loss(X, Y, X)
    with pytest.raises(ValueError, match="reduction: expected"):
        F.soft_margin_loss(X, SIGNS, reduction="max")
    with pytest.raises(NotImplementedError, match="out: not supported"):
        F.normalize(X, out=X)
    for loss in ("multi_margin_loss", "multilabel_margin_loss"):  # a number is one class
        arguments = torch.tensor(2.0), torch.tensor(0)
        assert getattr(F, loss)(*arguments) == getattr(torch.nn.functional, loss)(*arguments) == 0
    assert math.isnan(F.soft_margin_loss(torch.empty(0), torch.empty(0)))
    assert name(F.soft_margin_loss(X.half(), SIGNS.half()).dtype) == "float16"
