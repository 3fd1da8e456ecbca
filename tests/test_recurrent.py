"""Recurrent layers against their definition, to the bit: layers, cells, kernels, packed sequences, errors."""

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import repkernels
from reference import philox
from reference import recurrent as reference
from repkernels import nn
from repkernels.ops.dropout import dropout
from repkernels.ops.recurrent import _recurrent, direction
from tests.backends import BACKENDS
from tests.support import DEVICES, assert_same_bits, bits, name, randn, tensor, values

HIDDEN, OUT = 5, 3
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
SIZES = [4, 4, 3, 1]


def operands(mode, dtype, device, projected=False, bias=True):
    out = OUT if projected else HIDDEN
    width = GATES[mode] * HIDDEN
    shapes = {"x": (sum(SIZES), 6), "h": (4, out), "c": (4, HIDDEN), "w_ih": (width, 6), "w_hh": (width, out)}
    shapes |= {"b_ih": (width,), "b_hh": (width,)} if bias else {}
    shapes |= {"w_hr": (OUT, HIDDEN)} if projected else {}
    if mode != "lstm":
        del shapes["c"]
    return {
        key: randn(*shape, dtype=dtype, device=device, seed=seed).requires_grad_()
        for seed, (key, shape) in enumerate(shapes.items())
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("mode", "dtype", "projected", "reverse", "bias", "contract"),
    [
        ("lstm", torch.float32, False, False, True, ("fixed24", "fixed32")),
        ("lstm", torch.bfloat16, True, True, True, ("fixed16", "fixed24")),
        ("gru", torch.float32, False, True, True, ("ordered", "ordered")),
        ("gru", torch.float16, False, False, True, ("fixed16", "fixed24")),
        ("tanh", torch.float32, False, False, False, ("fixed24", "fixed32")),
        ("relu", torch.bfloat16, False, True, True, ("ordered", "fixed16")),
    ],
)
def test_a_direction_is_the_reference(device, mode, dtype, projected, reverse, bias, contract):
    x = operands(mode, dtype, device, projected, bias)
    weights = [x.get(key) for key in ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr")]
    c = x.get("c")
    y, h_n, c_n = direction(x["x"], SIZES, x["h"], c, weights, mode, reverse, contract)
    kind = name(dtype)
    arrays = {key: values(v) for key, v in x.items()}
    w = reference.Weights(*(arrays.get(key) for key in reference.Weights._fields))
    run = reference.forward(mode, arrays["x"], SIZES, arrays["h"], arrays.get("c"), w, reverse, kind, contract[0])
    assert_same_bits(y.cpu(), tensor(run.y, dtype))
    assert_same_bits(h_n.cpu(), tensor(run.h, dtype))
    results, seeds = [y, h_n] + ([c_n] if c is not None else []), (20, 21, 22)
    if c is not None:
        assert_same_bits(c_n.cpu(), tensor(run.c, dtype))
    upstream = [randn(*r.shape, dtype=dtype, device=device, seed=s) for r, s in zip(results, seeds, strict=False)]
    grads = dict(zip(x, torch.autograd.grad(results, list(x.values()), upstream), strict=True))
    given = [values(g) for g in upstream] + [None]
    expected = reference.backward(mode, *given[:3], arrays["x"], SIZES, run, w, kind, contract[1])
    for key, grad in grads.items():
        assert_same_bits(grad.cpu(), tensor(expected[key], dtype))
    with torch.no_grad():  # nothing is kept for a gradient
        assert_same_bits(direction(x["x"], SIZES, x["h"], c, weights, mode, reverse, contract)[0], y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", GATES)
def test_steps_of_both_backends_agree(mode, dtype):
    if dtype != torch.float32 and mode == "relu":
        pytest.skip("as tanh")
    batch, width = 3, GATES[mode] * HIDDEN
    found = []
    for backend in BACKENDS:
        kernels, device = backend.module("recurrent"), backend.device
        p, q = (randn(batch, width, dtype=dtype, device=device, seed=s) * 2 for s in (0, 1))
        state, g, carried = (randn(batch, HIDDEN, dtype=dtype, device=device, seed=s) for s in (2, 3, 4))
        p[0, 0], state[0, 1], g[0, 2] = float("nan"), float("inf"), 1e-40 if dtype == torch.float32 else 0.0
        share = randn(batch, HIDDEN, device=device, seed=5)
        acts = torch.zeros(batch if mode in ("lstm", "gru") else 0, 4 * HIDDEN, device=device)
        h, c, total = (torch.zeros_like(state) for _ in range(3))
        kernels.forward(mode, p, q, state, acts, h, c)
        dp, dq = torch.zeros_like(p), torch.zeros_like(p)
        before = h if mode in ("tanh", "relu") else state
        kernels.backward(mode, g, carried, share, acts, before, dp, dq)
        again = [torch.zeros_like(p) for _ in range(2)]
        kernels.backward(mode, g, g.new_empty(0), share.clone(), acts, before, *again)
        kernels.summed(share, carried, total)
        found.append([t.cpu() for t in (acts, h, c, share, dp, dq, *again, total)])
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other)


def _run(model, x, hx=None):
    y, state = model(x, hx)
    data = y if isinstance(y, torch.Tensor) else y.data
    states = state if isinstance(state, tuple) else (state,)
    loss = (data * torch.linspace(-1, 1, data.numel()).view_as(data)).sum() + sum((s * s).sum() for s in states)
    return [data, *states, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3, "batch_first": True}),
        ("GRU", {"num_layers": 2, "bidirectional": True}),
        ("RNN", {"nonlinearity": "relu", "bias": False, "batch_first": True}),
    ],
)
def test_modules_take_what_torchs_take(kind, options):
    theirs, ours = getattr(torch.nn, kind)(6, 5, **options), getattr(nn, kind)(6, 5, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    packed = pack_sequence([randn(n, 6, seed=n) for n in (4, 2, 5)], enforce_sorted=False)
    for x in (randn(4, 3, 6), randn(4, 6), packed):
        for a, b in zip(_run(ours, x), _run(theirs, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    x = randn(3, 4, 6) if ours.batch_first else randn(4, 3, 6)
    states = theirs(x)[1]
    hx = tuple(t.detach() for t in states) if isinstance(states, tuple) else states.detach()
    for given in (x, packed):
        for a, b in zip(_run(ours, given, hx), _run(theirs, given, hx), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_sequence_does_not_know_its_batch():
    layer = nn.LSTM(6, 5, num_layers=2, bidirectional=True)
    sequences = [randn(n, 6, seed=n) for n in (4, 2, 5)]
    together, _ = torch.nn.utils.rnn.pad_packed_sequence(layer(pack_sequence(sequences, enforce_sorted=False))[0])
    for k, sequence in enumerate(sequences):
        assert_same_bits(layer(sequence)[0], together[: len(sequence), k])


def test_dropout_between_layers():
    repkernels.manual_seed(3)
    layer = nn.GRU(6, 5, num_layers=2, dropout=0.5)
    first, second = nn.GRU(6, 5), nn.GRU(5, 5)
    first.load_state_dict({k: v for k, v in layer.state_dict().items() if k.endswith("l0")})
    second.load_state_dict({k.replace("l1", "l0"): v for k, v in layer.state_dict().items() if k.endswith("l1")})
    x = randn(4, 3, 6)
    repkernels.manual_seed(9)
    found = layer(x)[0]
    repkernels.manual_seed(9)
    middle = dropout(first(x)[0].reshape(12, 5), 0.5).view(4, 3, 5)
    assert_same_bits(found, second(middle)[0])
    assert repkernels.random.get_state()["stream"] == 1
    layer.eval()
    assert_same_bits(layer(x)[0], second(first(x)[0])[0])


def test_initial_bits():
    repkernels.manual_seed(7)
    layer = nn.LSTM(3, 4, proj_size=2)
    for stream, p in enumerate(layer.parameters()):
        wanted = philox.uniform(7, stream, p.numel(), -0.5, 0.5).reshape(p.shape)
        assert_same_bits(p.data, tensor(wanted, torch.float32))
    cell = nn.GRUCell(3, 4)
    assert_same_bits(cell.weight_ih.data, tensor(philox.uniform(7, 5, 36, -0.5, 0.5).reshape(12, 3), torch.float32))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_cells_are_steps_of_layers(kind):
    layer, cell = getattr(nn, kind)(6, 5), getattr(nn, kind + "Cell")(6, 5)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    assert repr(cell) == repr(getattr(torch.nn, kind + "Cell")(6, 5))
    x, state = randn(3, 4, 6), None
    y = layer(x)[0]
    for t in range(3):
        state = cell(x[t], state)
        assert_same_bits(state[0] if kind == "LSTM" else state, y[t])
    assert cell(x[0, 0])[0].shape == ((5,) if kind == "LSTM" else ())


def test_under_torch_compile_and_autocast():
    layer, x = nn.LSTM(6, 5), randn(3, 2, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    # Without it Dynamo refuses every subclass of torch's recurrent layers.
    with repkernels.contract("ordered"), torch._dynamo.config.patch(allow_rnn=True):
        expected, found = _run(layer, x), _run(compiled, x)
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a, b)
    assert (bits(expected[0]) != bits(layer(x)[0])).any()
    half = copy.deepcopy(layer).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y, (h, c) = layer(x)
    wanted, (h_half, c_half) = half(x.bfloat16())
    for a, b in ((y, wanted), (h, h_half), (c, c_half)):
        assert_same_bits(a, b)


def test_opcheck():
    x = operands("lstm", torch.float32, "cpu", projected=True)
    p = randn(sum(SIZES), 20).requires_grad_()
    arguments = (p, x["h"], x["c"], x["w_hh"], x["b_hh"], x["w_hr"], None, SIZES, False, "lstm", "ordered", "ordered")
    torch.library.opcheck(torch.ops.repkernels.recurrent.default, (*arguments, True))
    assert_same_bits(_recurrent(*arguments, True)[0], torch.ops.repkernels.recurrent(*arguments, True)[0])


def test_vmap_and_second_derivatives():
    layer, x = nn.GRU(6, 5), randn(2, 3, 4, 6)
    found = torch.func.vmap(lambda x: layer(x)[0])(x)
    assert_same_bits(found, torch.stack([layer(x[k])[0] for k in range(2)]))
    x = randn(2, 1, 6).requires_grad_()
    (grad,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="recurrent layers: gradients of gradients"):
        grad.sum().backward()


def test_bad_input():
    layer, x = nn.LSTM(6, 5), randn(2, 3, 6)
    for wrong, hx, error, message in (
        (randn(2, 3, 7), None, RuntimeError, "must be equal to input_size. Expected 6, got 7"),
        (randn(2, 3, 6, 1), None, ValueError, "Expected input to be 2D or 3D, got 4D"),
        (randn(0, 3, 6), None, RuntimeError, "input: expected a sequence of at least one step"),
        (x.double(), None, ValueError, "does not match weight dtype"),
        (x, randn(1, 3, 5), TypeError, r"hx: expected \(h_0, c_0\)"),
        (x, (randn(1, 3, 5), randn(1, 3, 4)), RuntimeError, r"Expected hidden\[1\] size \(1, 3, 5\)"),
        (x, (randn(3, 5), randn(3, 5)), RuntimeError, "hx should also be 3-D"),
        (randn(2, 6), (randn(1, 3, 5), randn(1, 3, 5)), RuntimeError, "hx should also be 2-D"),
        ([1.0], None, TypeError, "input: expected a Tensor or a PackedSequence, got list"),
    ):
        with pytest.raises(error, match=message):
            layer(wrong, hx)
    with pytest.raises(NotImplementedError, match="input: dtype torch.float64 is not supported"):
        nn.GRU(6, 5).double()(x.double())
    with pytest.raises(RuntimeError, match="got 7 expected 6"):
        nn.GRUCell(6, 5)(randn(3, 7))
    with pytest.raises(RuntimeError, match=r"hx: expected shape \(3, 5\), got \(2, 5\)"):
        nn.GRUCell(6, 5)(randn(3, 6), randn(2, 5))
    with pytest.raises(ValueError, match="'native' means floating-point tensor cores"):
        layer.contract = "native"
        layer(x)
