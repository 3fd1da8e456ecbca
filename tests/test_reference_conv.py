"""reference/conv.py against torch on integers, a literal re-statement of its rules, and hand-made cases."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from reference import conv, inputs
from reference import matmul as mm
from reference.fma import fma32

INF, NAN = np.inf, np.nan
STRIDED = [2, 4, 5, 4], [6, 2, 3, 2], {"stride": [2, 1], "padding": [1, 2], "dilation": [1, 2], "groups": 2}
POINTWISE = [2, 6, 4, 5], [4, 3, 1, 1], {"stride": [2, 3], "groups": 2}
DEPTHWISE = [2, 3, 4, 5], [6, 1, 3, 3], {"padding": 1, "groups": 3}


class Problem:
    """Operands of one convolution, and its three contractions by the definition: lists of terms (k, left, right)."""

    def __init__(self, x, weight, options, kind="ordinary", seed=5):
        self.g = conv.geometry(x[2:], weight[2:], **options)
        out = (x[0], weight[0], *self.g.output)
        self.x, self.weight, self.grad = (
            inputs.operand(kind, "float32", tuple(shape), seed, stream)
            for shape, stream in ((x, 0), (weight, 1), (out, 3))
        )

    def results(self, contract):
        """Of the three contractions by the reference."""
        rule = self.g, "float32", contract
        return {
            "forward": conv.forward(self.x, self.weight, None, *rule),
            "input": conv.input_gradient(self.grad, self.weight, None, *rule),
            "weight": conv.weight_gradient(self.grad, self.x, *rule),
        }

    def read(self, n, c, p, t):
        """x where p and t meet, +0 in padding."""
        g = self.g
        i = tuple(a * s + b * d - q for a, b, s, d, q in zip(p, t, g.stride, g.dilation, g.padding, strict=True))
        inside = all(0 <= a < m for a, m in zip(i, g.size, strict=True))
        return self.x[(n, c, *i)] if inside else np.float32(0)

    def terms_of_result(self, n, o, *p):
        """Terms, and the vectors that `fixed` scales."""
        width, group = self.weight.shape[1], o // (len(self.weight) // self.g.groups)
        channels = range(group * width, group * width + width)
        taps = list(product(*map(range, self.g.kernel)))
        terms = [
            (j, self.read(n, c, p, t), self.weight[(o, c % width, *t)])
            for j, (c, t) in enumerate(product(channels, taps))
        ]
        pixel = np.array([a for _, a, _ in terms])
        return terms, pixel if self.g.pointwise else self.x[n, list(channels)], self.weight[o]

    def terms_of_input(self, n, c, *i):
        g, width = self.g, self.weight.shape[1]
        per, group = len(self.weight) // g.groups, c // width
        channels = range(group * per, group * per + per)
        terms = []
        for j, (o, t) in enumerate(product(channels, product(*map(range, g.kernel)))):
            steps = [a + q - b * d for a, b, d, q in zip(i, t, g.dilation, g.padding, strict=True)]
            p = [step // s for step, s in zip(steps, g.stride, strict=True)]
            if all(q * s == step and 0 <= q < m for q, s, step, m in zip(p, g.stride, steps, g.output, strict=True)):
                terms.append((j, self.grad[(n, o, *p)], self.weight[(o, c % width, *t)]))
        pixel = np.array([a for _, a, _ in terms])
        return terms, pixel if g.pointwise else self.grad[n, list(channels)], self.weight[list(channels), c % width]

    def terms_of_weight(self, o, c, *t):
        place = o // (len(self.weight) // self.g.groups) * self.weight.shape[1] + c
        positions = product(range(len(self.x)), product(*map(range, self.g.output)))
        terms = [(j, self.grad[(n, o, *p)], self.read(n, place, p, t)) for j, (n, p) in enumerate(positions)]
        return terms, self.grad[:, o], self.x[:, place]

    def definitions(self):
        return {"forward": self.terms_of_result, "input": self.terms_of_input, "weight": self.terms_of_weight}


def chained(terms):
    """`ordered`: a chain in each chunk that has a term, the chunks added ascending."""
    chunks = {}
    for k, a, b in terms:
        chunks[k // mm.CHUNK] = fma32(a, b, chunks.get(k // mm.CHUNK, np.float32(0)))
    total = np.float32(0)
    with np.errstate(all="ignore"):
        for place in sorted(chunks):
            total = total + chunks[place]
    return total


def summed(terms, left, right, digits):
    """`fixed`: Python integers all the way."""
    signs = sum(sign(a) * sign(b) for _, a, b in terms)
    if not math.isfinite(signs):
        return signs
    (e_a,), _ = mm.quantize(left.reshape(1, -1), digits)
    (e_b,), _ = mm.quantize(right.reshape(1, -1), digits)
    p = 0
    for _, a, b in terms:
        d_a, d_b = digits_of(a, e_a, digits), digits_of(b, e_b, digits)
        p += sum(d_a[i] * d_b[j] * 256 ** (2 * digits - 2 - i - j) for i, j in mm.pairs(digits))
    return mm.scaled(np.float32(mm.round32(p)), e_a + e_b)


def sign(v):
    return float(np.sign(v)) if np.isfinite(v) else float(v)


def digits_of(v, e, digits):
    q = round(Fraction(float(v)) / Fraction(2) ** int(e))
    return mm.balanced(np.array(q), digits).tolist()


def assert_equal(found, wanted):
    """Equal bits but for the sign of zero, which no result has, and of NaN."""
    assert not np.signbit(found[found == 0]).any()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shapes", "contract", "kind"),
    [
        *((STRIDED, contract, "spread") for contract in ("ordered", "fixed8", "fixed16", "fixed24")),
        (STRIDED, "ordered", "nonfinite"),
        (STRIDED, "fixed16", "nonfinite"),
        (POINTWISE, "fixed32", "ordinary"),
        (POINTWISE, "fixed16", "nonfinite"),
        (DEPTHWISE, "fixed16", "ordinary"),
    ],
)
def test_results_are_their_definition(shapes, contract, kind, monkeypatch):
    """Chunks are short, so that left-out taps must keep their place among them."""
    monkeypatch.setattr(mm, "CHUNK", 7)
    problem = Problem(*shapes, kind=kind)
    definitions = problem.definitions()
    for name, found in problem.results(contract).items():
        chain = contract == "ordered" or (shapes is DEPTHWISE and name != "weight")
        for index in list(np.ndindex(found.shape))[::3]:
            terms, left, right = definitions[name](*index)
            wanted = chained(terms) if chain else summed(terms, left, right, mm.DIGITS[contract])
            assert_equal(found[index], np.float32(wanted))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ([2, 3, 17], [5, 3, 4], {"stride": 3, "padding": 2, "dilation": 2}),
        STRIDED,
        POINTWISE,
        DEPTHWISE,
        ([1, 3, 5, 6], [2, 3, 2, 4], {"padding": "same", "dilation": [2, 1]}),
        ([1, 2, 3, 4], [3, 2, 3, 2], {"padding": [4, 3]}),
        ([1, 2, 4, 3, 5], [3, 2, 2, 3, 3], {"stride": [2, 1, 2], "padding": [1, 0, 1]}),
        ([0, 3, 5, 5], [4, 3, 3, 3], {"padding": "valid"}),
    ],
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, list) else "",
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_small_integers_are_torchs(x, weight, options, dtype):
    """They are exact in any order, forward, backward and transposed."""
    axes, rng = len(x) - 2, np.random.default_rng(0)
    a, w = integers(rng, x), integers(rng, weight)
    bias = integers(rng, weight[:1])
    tensors = [torch.from_numpy(v).double().requires_grad_() for v in (a, w, bias)]
    y = getattr(torch.nn.functional, f"conv{axes}d")(*tensors, **options)
    grad = integers(rng, y.shape)
    wanted = torch.autograd.grad(y, tensors, torch.from_numpy(grad).double())
    g = conv.geometry(x[2:], weight[2:], **options)
    assert g.output == y.shape[2:]
    for contract in ("ordered", "fixed8", "fixed32") if dtype == "float32" else ("ordered",):
        assert_equal(conv.forward(a, w, bias, g, dtype, contract), y.detach().numpy())
        assert_equal(conv.input_gradient(grad, w, None, g, dtype, contract), wanted[0].numpy())
        assert_equal(conv.weight_gradient(grad, a, g, dtype, contract), wanted[1].numpy())
    np.testing.assert_array_equal(conv.bias_gradient(grad, dtype), wanted[2].numpy())


def integers(rng, shape):
    return rng.integers(-8, 9, tuple(shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ([2, 4, 5], [4, 2, 3], {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 2, "groups": 2}),
        ([2, 4, 4, 3], [4, 3, 3, 2], {"stride": [2, 1], "padding": 1, "output_padding": [1, 0]}),
        ([1, 3, 2, 3, 2], [3, 1, 2, 3, 2], {"stride": [1, 2, 2], "groups": 3}),
    ],
)
def test_transposed_convolutions_of_small_integers_are_torchs(x, weight, options):
    rng = np.random.default_rng(1)
    a, w, bias = (integers(rng, shape) for shape in (x, weight, [weight[1] * options.get("groups", 1)]))
    y = getattr(torch.nn.functional, f"conv_transpose{len(x) - 2}d")(
        *(torch.from_numpy(v).double() for v in (a, w, bias)), **options
    )
    g = conv.transposed_geometry(x[2:], weight[2:], **options)
    assert_equal(conv.input_gradient(a, w, bias, g, "float32", "fixed16"), y.numpy())


@pytest.mark.parametrize("shapes", [STRIDED, POINTWISE])
@pytest.mark.parametrize("kind", ["ordinary", "spread"])
def test_accuracy_is_within_the_bound(shapes, kind):
    """Of `fixed` with the vectors' own largest elements, of `ordered` with the number of terms; exact sums beside."""
    problem = Problem(*shapes, kind=kind)
    definitions = problem.definitions()
    for contract in ("ordered", "fixed8", "fixed16", "fixed24", "fixed32"):
        for name, results in problem.results(contract).items():
            for index in list(np.ndindex(results.shape))[::7]:
                terms, left, right = definitions[name](*index)
                exact = sum(Fraction(float(a)) * Fraction(float(b)) for _, a, b in terms)
                result = float(results[index])
                assert abs(Fraction(result) - exact) <= limit(terms, left, right, result, contract)


def limit(terms, left, right, result, contract):
    a, b = (np.abs([float(term[i]) for term in terms]) for i in (1, 2))
    if contract == "ordered":
        return len(terms) * 2.0**-24 * float(a @ b) * (1 + 2.0**-20)
    digits = mm.DIGITS[contract]
    m_a, m_b = (np.abs(v.astype(np.float64)).max(initial=0) for v in (left, right))
    dropped = {1: 0, 2: 0, 3: 2**16, 4: 2**25 + 2**16}[digits]
    steps = (m_a * b.sum() + m_b * a.sum()) / mm.limit(digits)
    return steps + len(terms) * m_a * m_b * (1 + dropped) / mm.limit(digits) ** 2 + 2.0**-24 * abs(result)


def image(*values):
    """One sample of one channel, one axis."""
    return np.array(values, np.float32).reshape(1, 1, -1)


@pytest.mark.parametrize("contract", mm.CONTRACTS)
def test_padding_is_an_operand(contract):
    """+0: it meets an infinite weight as NaN, an infinite gradient too."""
    g = conv.geometry([3], [3], padding=1)
    found = conv.forward(image(1, 2, 3), image(INF, 1, 1), None, g, "float32", contract)
    np.testing.assert_array_equal(found, image(NAN, INF, INF))
    found = conv.weight_gradient(image(INF, 1, 1), image(1, 2, 3), g, "float32", contract)
    np.testing.assert_array_equal(found, image(NAN, INF, INF))


@pytest.mark.parametrize("contract", mm.CONTRACTS)
def test_taps_that_meet_no_output_take_no_part(contract):
    """An infinite weight reaches only the inputs that a gradient comes to by it."""
    g = conv.geometry([5], [3], stride=2)
    found = conv.input_gradient(image(1, 2), image(1, INF, 4), None, g, "float32", contract)
    np.testing.assert_array_equal(found, image(1, INF, 6, INF, 8))
    # Position 0 of the second gradient is a true zero.
    found = conv.input_gradient(image(1, 0), image(1, INF, 4), None, g, "float32", contract)
    np.testing.assert_array_equal(found, image(1, INF, 4, NAN, 0))


@pytest.mark.parametrize("contract", mm.CONTRACTS)
def test_inputs_that_nothing_reads(contract):
    """Their gradient is +0, and a transposed convolution gives its bias there."""
    g = conv.geometry([4], [1], stride=3)
    grad, weight = image(NAN, 2), image(INF)
    found = conv.input_gradient(grad, weight, None, g, "float32", contract)
    assert_equal(found, image(NAN, 0, 0, INF))
    found = conv.input_gradient(grad, weight, np.float32([-1]), g, "float32", contract)
    np.testing.assert_array_equal(found, image(NAN, -1, -1, INF))


def test_samples_are_alone():
    """Forward and input gradient of a sample, under every contract, whatever the others hold."""
    rng = np.random.default_rng(2)
    g = conv.geometry([5, 4], [3, 3], padding=1)
    x, weight = rng.normal(size=(3, 2, 5, 4)).astype(np.float32), rng.normal(size=(3, 2, 3, 3)).astype(np.float32)
    grad = rng.normal(size=(3, 3, 5, 4)).astype(np.float32)
    for contract in mm.CONTRACTS:
        rule = weight, None, g, "float32", contract
        alone = conv.forward(x[1:2], *rule), conv.input_gradient(grad[1:2], *rule)
        for other in (2.0**100, INF):
            loud = x.copy(), grad.copy()
            for v in loud:
                v[0, 0, 0, 0] = v[2, 1, 4, 3] = other
            np.testing.assert_array_equal(conv.forward(loud[0], *rule)[1:2], alone[0])
            np.testing.assert_array_equal(conv.input_gradient(loud[1], *rule)[1:2], alone[1])


def test_scales_are_of_whole_slices():
    """An element that no output reads has a part in its sample's scale; not where a pixel has its own."""
    fine = np.float32(1 + 2.0**-20)
    x, weight = image(fine, 2.0**30, 0), image(1)
    for padding, wanted in ((0, fine), (2, 0)):
        # Padding 2 puts the same elements in reach, and makes the convolution one with scales of samples.
        found = conv.forward(x, weight, None, conv.geometry([3], [1], 2, padding), "float32", "fixed24")
        assert found[0, 0, padding // 2] == wanted
    found = conv.input_gradient(x[..., ::-1], weight, None, conv.geometry([3], [1]), "float32", "fixed24")
    assert found[0, 0, 2] == fine


def test_pointwise_is_linear():
    """Over the channels of a pixel, whatever the stride, and so is its gradient."""
    problem = Problem([3, 9, 4, 5], [7, 9, 1, 1], {"stride": 2}, kind="spread")
    weight = problem.weight[:, :, 0, 0]
    for contract in mm.CONTRACTS:
        results = problem.results(contract)
        pixels, grads = (np.moveaxis(v, 1, -1) for v in (problem.x[:, :, ::2, ::2], problem.grad))
        wanted = mm.linear(pixels, weight, None, "float32", contract)
        np.testing.assert_array_equal(results["forward"], np.moveaxis(wanted, -1, 1))
        wanted = mm.matmul(grads, weight, "float32", contract)
        np.testing.assert_array_equal(results["input"][:, :, ::2, ::2], np.moveaxis(wanted, -1, 1))


def test_depthwise_is_ordered_but_for_the_weight():
    """One channel in one group is no such case."""
    problem = Problem(*DEPTHWISE, kind="spread")
    fixed, ordered = problem.results("fixed16"), problem.results("ordered")
    for name in ("forward", "input"):
        np.testing.assert_array_equal(fixed[name], ordered[name])
    assert (fixed["weight"] != ordered["weight"]).any()
    single = Problem([2, 1, 4, 5], [3, 1, 3, 3], {}, kind="spread")
    assert (single.results("fixed16")["forward"] != single.results("ordered")["forward"]).any()


def test_chunks_of_the_weight_gradient_run_over_samples():
    """Position 4096 of the flattened (n, output) starts a chain of its own."""
    grad = np.zeros((2, 1, 4096), np.float32)
    grad[0, 0, 0], grad[1, 0, :2] = 2**24, 1
    x = np.ones((2, 1, 4096), np.float32)
    g = conv.geometry([4096], [1])
    assert conv.weight_gradient(grad, x, g, "float32", "ordered") == 2**24 + 2
    grad[0, 0, 1:3], grad[1, 0, :2] = 1, 0
    assert conv.weight_gradient(grad, x, g, "float32", "ordered") == 2**24


def test_bias_is_added_in_binary32_and_rounded_once():
    """257 is a tie of bfloat16."""
    g = conv.geometry([1], [1])
    x, weight = np.array([[[256], [1]]], np.float32), np.ones((1, 2, 1), np.float32)
    for contract in ("ordered", "fixed16"):
        assert conv.forward(x, weight, np.float32([1]), g, "bfloat16", contract) == 258
    # The transposed one alike.
    assert conv.input_gradient(x, weight.reshape(2, 1, 1), np.float32([1]), g, "bfloat16", "fixed24") == 258


@pytest.mark.parametrize("contract", mm.CONTRACTS)
def test_no_samples(contract):
    g = conv.geometry([3, 3], [2, 2])
    x, weight, grad = np.ones((0, 2, 3, 3)), np.ones((4, 2, 2, 2)), np.ones((0, 4, 2, 2))
    assert conv.forward(x, weight, None, g, "float32", contract).shape == (0, 4, 2, 2)
    assert conv.input_gradient(grad, weight, None, g, "float32", contract).shape == x.shape
    assert_equal(conv.weight_gradient(grad, x, g, "float32", contract), np.zeros(weight.shape))
    assert_equal(conv.bias_gradient(grad, "float32"), np.zeros(4))
