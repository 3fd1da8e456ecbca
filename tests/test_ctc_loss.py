"""CTC loss: both backends against the definition, torch's values, forms of targets, what is refused."""

import pytest
import torch
from torch.nn import functional as theirs

from reference import ctc_loss as reference
from repkernels import nn
from repkernels.nn.functional import ctc_loss
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

# Repeated labels, no label, too few steps for the target, a length of nothing.
TARGETS = [[1, 1, 2], [3, 4, 3], [], [1, 2, 1], [2]]
INPUTS = [6, 5, 3, 2, 0]


def logits(dtype=torch.float32):
    return randn(6, 5, 5).log_softmax(2).to(dtype)


def padded(targets=TARGETS):
    return torch.tensor([[*y, *[0] * (3 - len(y))] for y in targets]), torch.tensor([len(y) for y in targets])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_against_the_definition(device, reduction):
    y, lengths = padded()
    for dtype in (torch.float32, torch.bfloat16):
        for zero in (False, True):
            leaf = logits(dtype).to(device).requires_grad_()
            loss = ctc_loss(leaf, y.to(device), INPUTS, lengths, reduction=reduction, zero_infinity=zero)
            g = randn(*loss.shape, dtype=dtype, seed=1)
            (grad,) = torch.autograd.grad(loss, leaf, g.to(device))
            wanted = reference.ctc_loss(
                values(leaf), TARGETS, INPUTS, name(dtype), values(g), reduction=reduction, zero_infinity=zero
            )
            assert_same_bits(loss.detach().cpu(), tensor(wanted[0], dtype))
            assert_same_bits(grad.cpu(), tensor(wanted[1], dtype))


@each_backend
def test_backends(backend):
    """Walks, shares and gradient of each backend, with more labels than one, a blank in the middle, a half type."""
    x = logits(torch.float16)
    targets = [[0, 1, 1], [3, 4, 3], [], [1, 3, 1], [4]]
    y, lengths = padded(targets)
    wanted = reference.ctc_loss(values(x), targets, INPUTS, "float16", 1.0, 2, "none")
    x, y, lengths, steps = (t.to(backend.device) for t in (x, y, lengths, torch.tensor(INPUTS)))
    module = backend.module("ctc_loss")
    walks, loss = torch.empty(2, 5, 6, 7, device=x.device), torch.empty(5, device=x.device)
    module.walk(x, y, steps, lengths, 2, walks, loss)
    assert_same_bits(loss.half().cpu(), tensor(wanted[0], torch.float16))
    shares = torch.empty(5, 7, 6, device=x.device)
    index = torch.empty(5, 7, dtype=torch.int64, device=x.device)
    module.occupancy(x, y, steps, lengths, 2, walks, loss, shares, index)
    order = torch.arange(35, device=x.device)
    add = backend.module("grouped_sum").grouped_sum
    ordered, starts = index.view(-1).sort(stable=True)
    starts_of = torch.searchsorted(ordered, torch.arange(26, device=x.device))
    sums = add(shares.view(35, 6), order[starts], starts_of, None, 1.0, False, torch.float32)
    out = torch.empty_like(x)
    module.gradient(torch.ones(5, device=x.device), x, sums, loss, steps, False, out)
    assert_same_bits(out.cpu(), tensor(wanted[1], torch.float16))


def test_close_to_torch_and_forms():
    x = logits().requires_grad_()
    y, lengths = padded()
    for reduction in ("none", "sum", "mean"):
        pair = [
            f(x, y, torch.tensor(INPUTS), lengths, reduction=reduction, zero_infinity=True)
            for f in (ctc_loss, theirs.ctc_loss)
        ]
        torch.testing.assert_close(*pair)
        torch.testing.assert_close(*(torch.autograd.grad(v.sum(), x)[0] for v in pair), rtol=1e-4, atol=1e-6)
    flat = torch.tensor([label for labels in TARGETS for label in labels], dtype=torch.int32)
    wanted = ctc_loss(x, y, INPUTS, lengths, reduction="none")
    assert_same_bits(ctc_loss(x, flat, torch.tensor(INPUTS), tuple(lengths.tolist()), reduction="none"), wanted)
    assert_same_bits(ctc_loss(x[:, 0], y[0], torch.tensor(6), torch.tensor(3), reduction="none"), wanted[0])
    ours, same = nn.CTCLoss(reduction="sum", zero_infinity=True), torch.nn.CTCLoss(reduction="sum", zero_infinity=True)
    assert isinstance(ours, torch.nn.CTCLoss) and repr(ours) == repr(same)
    torch.testing.assert_close(ours(x, y, torch.tensor(INPUTS), lengths), same(x, y, torch.tensor(INPUTS), lengths))


def test_compiled_and_certain():
    y, lengths = padded()
    steps = torch.tensor(INPUTS)
    leaf = logits().requires_grad_()
    loss = torch.compile(lambda v: ctc_loss(v, y, steps, lengths), fullgraph=True, backend="aot_eager")(leaf)
    assert_same_bits(loss, ctc_loss(leaf, y, steps, lengths))
    certain = torch.full((2, 1, 2), -float("inf"))
    certain[0, 0, 1] = certain[1, 0, 0] = 0.0
    certain.requires_grad_()
    loss = ctc_loss(certain, torch.tensor([[1]]), [2], [1], reduction="sum")
    assert_same_bits(loss, torch.tensor(0.0))
    assert_same_bits(torch.autograd.grad(loss, certain)[0], torch.zeros(2, 1, 2))


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"log_probs": torch.zeros(3)}, RuntimeError, "log_probs"),
        ({"log_probs": torch.zeros(3, 0, 4)}, RuntimeError, "empty"),
        ({"log_probs": torch.zeros(3, 2, 4).double()}, NotImplementedError, "float64"),
        ({"targets": torch.tensor([[1, 4], [1, 2]])}, RuntimeError, "label 4"),
        ({"targets": torch.tensor([1, 2, 3])}, RuntimeError, "add up to"),
        ({"targets": torch.zeros(3, 2, dtype=torch.int64)}, RuntimeError, "targets"),
        ({"targets": torch.zeros(2, 2)}, NotImplementedError, "targets"),
        ({"input_lengths": (4, 3)}, RuntimeError, "value at most 3"),
        ({"input_lengths": (3,)}, RuntimeError, "batch_size"),
        ({"input_lengths": torch.tensor([3.0, 3.0])}, RuntimeError, "integral"),
        ({"target_lengths": (3, 1)}, RuntimeError, "value at most 2"),
        ({"blank": 4}, RuntimeError, "blank"),
        ({"reduction": "avg"}, ValueError, "avg"),
    ],
)
def test_what_is_refused(options, error, what):
    arguments = {
        "log_probs": torch.zeros(3, 2, 4), "targets": torch.tensor([[1, 2], [1, 2]]), "input_lengths": (3, 3),
        "target_lengths": (2, 2),
    }  # fmt: skip
    with pytest.raises(error, match=what):
        ctc_loss(**{**arguments, **options})
