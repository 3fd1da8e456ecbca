"""Attention, transformer layers and bilinear forms: bits against the reference, torch's signatures and values."""

import copy
import inspect
import math

import pytest
import torch

import repkernels
from reference import matmul as reference_matmul
from reference import multi_head_attention as reference
from reference import philox
from repkernels import nn
from repkernels.nn import functional as F
from repkernels.ops.multi_head_attention import attended
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

CONTRACTS = {torch.float32: ("fixed24", "fixed32"), torch.bfloat16: ("fixed16", "fixed24")}


def signature(function):
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.kind in kinds]


@pytest.mark.parametrize(
    "module", ["TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer", "MultiheadAttention", "Bilinear"]
)
def test_signatures_are_torchs(module):
    assert signature(getattr(nn, module)) == signature(getattr(torch.nn, module))
    assert signature(getattr(nn, module).forward) == signature(getattr(torch.nn, module).forward)


def test_the_function_signature_is_torchs():
    theirs = torch.nn.functional.multi_head_attention_forward
    assert signature(F.multi_head_attention_forward) == signature(theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", CONTRACTS)
def test_attention_from_products_is_the_reference(device, dtype):
    q, k, v = (randn(2, n, e, dtype=dtype, device=device, seed=n) for n, e in ((5, 8), (7, 8), (7, 3)))
    mask = torch.zeros(5, 7, dtype=dtype, device=device)
    mask[:, 6], mask[3] = -math.inf, 0.5
    inputs = [x.requires_grad_() for x in (q, k, v)]
    rule = CONTRACTS[dtype]
    out, _ = attended(*inputs, mask, 0.0, 1 / math.sqrt(8), rule)
    arrays = [values(x) for x in inputs]
    wanted, weights = reference.forward(*arrays, values(mask), name(dtype), rule[0])
    assert_same_bits(out.cpu(), tensor(wanted, dtype))
    grad = randn(2, 5, 3, dtype=dtype, device=device, seed=9)
    grads = torch.autograd.grad(out, inputs, grad)
    for found, want in zip(
        grads, reference.backward(values(grad), *arrays, weights, name(dtype), rule[1]), strict=True
    ):
        assert_same_bits(found.cpu(), tensor(want, dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", CONTRACTS)
def test_self_attention_is_the_reference(device, dtype):
    layer = nn.MultiheadAttention(8, 2, device=device, dtype=dtype)
    torch.nn.init.normal_(layer.in_proj_bias, generator=None)
    x = randn(5, 3, 8, dtype=dtype, device=device).requires_grad_()
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5, device=device, dtype=dtype)
    grad = randn(5, 3, 8, dtype=dtype, device=device, seed=1)
    out, weights = layer(x, x, x, attn_mask=mask)
    parameters = dict(layer.named_parameters())
    grads = torch.autograd.grad(out, [x, *parameters.values()], grad)
    wanted = reference.self_attention(
        values(x), {k: values(p) for k, p in parameters.items()}, 2, values(mask), name(dtype), CONTRACTS[dtype],
        values(grad),
    )  # fmt: skip
    for key, found in zip(("out", "weights", "x", *parameters), (out, weights, *grads), strict=True):
        assert_same_bits(found.cpu(), tensor(wanted[key], dtype))
    again, nothing = layer(x, x, x, attn_mask=mask, need_weights=False, is_causal=True)
    assert_same_bits(again, out)
    assert nothing is None


def run(module, call, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    results = call(module, *inputs)
    results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
    loss = sum((r * torch.linspace(-1, 1, r.numel()).view_as(r)).sum() for r in results)
    return results + list(torch.autograd.grad(loss, [*inputs, *module.parameters()], allow_unused=True))


def assert_close(ours, theirs, call, *inputs):
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    for a, b in zip(run(ours, call, *inputs), run(theirs, call, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True, "add_zero_attn": True, "batch_first": True}, {"kdim": 6, "vdim": 10}], ids=str
)
def test_attention_takes_what_torchs_takes(options):
    theirs, ours = torch.nn.MultiheadAttention(8, 2, **options), nn.MultiheadAttention(8, 2, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    first = (3,) if options.get("batch_first") else ()
    last = () if first else (3,)
    q, k, v = (randn(*first, n, *last, theirs_dim) for n, theirs_dim in ((4, 8), (5, theirs.kdim), (5, theirs.vdim)))
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.ones(4, 5).triu(1).bool()
    each = torch.zeros(6, 4, 5).masked_fill(causal, -1.5)
    for masks in (
        {"key_padding_mask": padding, "attn_mask": causal, "average_attn_weights": False},
        {"attn_mask": each, "need_weights": False},
    ):
        assert_close(ours, theirs, lambda m, *x, masks=masks: m(*x, **masks), q, k, v)
    if first:
        assert_close(ours, theirs, lambda m, x, y: m(x, y, y), q, k)
        assert_close(ours, theirs, lambda m, x: m(x, x, x), q[0])
    else:
        assert_close(ours, theirs, lambda m, *x: m(*x), q[:, 0], k[:, 0], v[:, 0])


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "batch_first": True, "activation": "gelu"}], ids=str)
def test_transformers_take_what_torchs_take(options):
    sizes = (8, 2, 2, 1, 16, 0.0)
    theirs, ours = torch.nn.Transformer(*sizes, **options), nn.Transformer(*sizes, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    source, target = randn(5, 3, 8), randn(5, 3, 8, seed=1)
    length = 3 if options else 5
    mask = theirs.generate_square_subsequent_mask(length)
    padding = torch.zeros(*((5, 3) if options else (3, 5)), dtype=torch.bool)
    padding[1, 2:] = True

    def call(m, a, b):
        return m(a, b, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=padding)

    assert_close(ours, theirs, call, source, target)
    converted = repkernels.convert(copy.deepcopy(theirs))
    assert_same_bits(call(converted, source, target), call(ours, source, target))
    converted.eval(), theirs.eval()
    with torch.no_grad():  # torch's fast path
        torch.testing.assert_close(call(converted, source, target), call(theirs, source, target), rtol=1e-4, atol=1e-5)


def test_dropout_takes_our_streams():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.5)
    x = randn(4, 3, 8)
    found = []
    for seed in (1, 1, 2):
        repkernels.manual_seed(seed)
        found.append(layer(x))
    assert_same_bits(found[0], found[1])
    assert (found[0] != found[2]).any()
    assert repkernels.random.get_state()["stream"] == 4  # weights, inside, both blocks


def test_initial_bits():
    repkernels.manual_seed(5)
    layer = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    bound = math.sqrt(3) * math.sqrt(2 / 16)
    wanted = philox.uniform(5, 0, 48, -bound, bound).reshape(12, 4)
    assert_same_bits(layer.in_proj_weight.data, tensor(wanted, torch.float32))
    assert_same_bits(
        layer.out_proj.weight.data, tensor(philox.uniform(5, 1, 16, -0.5, 0.5).reshape(4, 4), torch.float32)
    )
    assert repkernels.random.get_state()["stream"] == 4


def test_under_torch_compile():
    layer, x = nn.MultiheadAttention(8, 2), randn(4, 3, 8)
    padding = torch.zeros(3, 4, dtype=torch.bool)
    padding[1, 2:] = True
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = [run(m, lambda m, x: m(x, x, x, key_padding_mask=padding), x) for m in (layer, compiled)]
    for a, b in zip(*found, strict=True):
        assert_same_bits(a, b)


def test_contracts_of_attention():
    layer, x = nn.MultiheadAttention(8, 2), randn(4, 3, 8)
    outs = [layer(x, x, x)[0]]
    layer.out_proj.contract = "ordered"
    outs.append(layer(x, x, x)[0])
    layer.contract = "ordered"
    outs.append(layer(x, x, x)[0])
    with repkernels.contract("ordered"):
        layer.contract = layer.out_proj.contract = None
        assert_same_bits(layer(x, x, x)[0], outs[2])
    assert (outs[0] != outs[1]).any()
    assert (outs[1] != outs[2]).any()


@pytest.mark.parametrize("dtype", CONTRACTS)
def test_bilinear_is_the_reference(dtype):
    layer, x, y = nn.Bilinear(3, 4, 5, dtype=dtype), randn(2, 6, 3, dtype=dtype), randn(2, 6, 4, dtype=dtype, seed=1)
    rule = CONTRACTS[dtype][0]
    inner = reference_matmul.matmul(values(x).reshape(12, 3), values(layer.weight), name(dtype), rule)
    outer = reference_matmul.matmul(inner.swapaxes(0, 1), values(y).reshape(12, 4, 1), name(dtype), rule)
    wanted = tensor(outer[..., 0], dtype) + layer.bias.detach()
    assert_same_bits(layer(x, y), wanted.view(2, 6, 5))
    if dtype == torch.float32:
        assert_close(layer, torch.nn.Bilinear(3, 4, 5), lambda m, x, y: m(x, y), x, y)


def test_bad_input():
    layer, x = nn.MultiheadAttention(8, 2), randn(4, 3, 8)
    with pytest.raises(RuntimeError, match="The shape of the 2D attn_mask"):
        layer(x, x, x, attn_mask=torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="attn_mask: needed with is_causal"):
        layer(x, x, x, is_causal=True)
    with pytest.raises(NotImplementedError, match="query: dtype torch.float64 is not supported"):
        layer.double()(x.double(), x.double(), x.double())
    with pytest.raises(RuntimeError, match="input2: last size 3 differs from weight's size 4"):
        F.bilinear(randn(2, 3), randn(2, 3), randn(5, 3, 4))
