"""Resizing: both backends against the definition, torch's values, gradients, layouts, modules, what is refused."""

import pytest
import torch
from torch.nn import functional as theirs

from reference import resample as reference
from repkernels import nn
from repkernels.nn.functional import fold, interpolate, unfold
from repkernels.ops.taps import taps
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

MODES = {"nearest": 2, "nearest-exact": 1, "linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
SHAPE = (2, 3, 5, 4, 6)
FAST_FORMATS = (torch.float32, torch.bfloat16)


def shape(axes):
    return SHAPE[: 2 + axes]


def both(x, options, device):
    leaf = x.to(device).requires_grad_()
    y = interpolate(leaf, **options)
    g = randn(*y.shape, dtype=x.dtype, seed=1)
    return y.detach().cpu(), g, torch.autograd.grad(y, leaf, g.to(device))[0].cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
def test_against_the_definition(device, mode):
    axes = MODES[mode]
    corners = () if mode.startswith("nearest") else (True,)
    smooth = (True,) if mode in ("bilinear", "bicubic") else ()
    for dtype in FAST_FORMATS if axes < 3 else (torch.float64,):
        calls = [{"size": (3, 7, 2)[:axes]}, {"scale_factor": 1.7}]
        calls += [{"size": (4, 1, 7)[:axes], "align_corners": c} for c in corners]
        calls += [{"size": (2, 9), "antialias": a} for a in smooth]
        for options in calls:
            x = randn(*shape(axes), dtype=dtype)
            y, g, grad = both(x, {"mode": mode, **options}, device)
            factors = [options.get("scale_factor")] * axes
            options = {k: v for k, v in options.items() if k not in ("size", "scale_factor")}
            out, wanted = reference.interpolate(values(x), values(g), mode, name(dtype), factors, **options)
            assert_same_bits(y, tensor(out, dtype))
            assert_same_bits(grad, tensor(wanted, dtype))


@pytest.mark.parametrize("mode", MODES)
def test_close_to_torch(mode):
    axes = MODES[mode]
    for options in (
        {"size": (3, 7, 2)[:axes]},
        {"scale_factor": 1.7},
        {"scale_factor": 0.7, "recompute_scale_factor": True},
    ):
        x = randn(*shape(axes), dtype=torch.float64).requires_grad_()
        ours, wanted = (f(x, mode=mode, **options) for f in (interpolate, theirs.interpolate))
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)
        g = randn(*ours.shape, dtype=torch.float64, seed=1)
        pair = [torch.autograd.grad(y, x, g)[0] for y in (ours, wanted)]
        torch.testing.assert_close(*pair, rtol=0, atol=1e-12)


@each_backend
def test_backends_layouts_and_formats(backend):
    """Many taps go through passes on a GPU, few do not; both are the chain that the CPU computes."""
    nothing = (0.0,) * 4
    for dtype in (torch.float32, torch.float16):
        for rule, outputs, transposed in (
            ("linear", (9, 4), False),
            ("cubic", (3, 4), True),
            ("cubic antialias", (2, 3), False),
        ):
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            x = randn(2, 3, 1, 5, 7, dtype=dtype).to(backend.device)
            sizes = [(m, n) if transposed else (n, m) for n, m in zip((5, 7), outputs, strict=True)]
            tables = [None, *(taps(rule, n, m, nothing, transposed, wide, x.device) for n, m in sizes)]
            found = []
            for layout in (torch.contiguous_format, torch.channels_last_3d):
                out = torch.empty((2, 3, 1, *outputs), dtype=dtype, device=x.device, memory_format=layout)
                backend.module("resample").resample(x.to(memory_format=layout), out, tables)
                found.append(out)
            assert_same_bits(*found)
            back = reference.transposed if transposed else lambda axis, n: axis
            mode = "bilinear" if rule == "linear" else "bicubic"
            axes = [back(reference.interpolate_taps(mode, n, m, None, False, "antialias" in rule), n) for n, m in sizes]
            wanted = reference.apply(values(x)[:, :, 0], axes, name(dtype))[:, :, None]
            assert_same_bits(found[0].cpu(), tensor(wanted, dtype))


def test_special_values():
    """Infinities and NaN reach their neighbours; zeros keep their sign; what nobody reads gets +0."""
    x = torch.tensor([[[1.0, float("inf"), -0.0, -0.0, float("nan")]]])
    y = interpolate(x, size=3, mode="linear")
    assert y[0, 0, 0] == float("inf") and y[0, 0, 2].isnan()
    assert_same_bits(interpolate(x, size=5), x)
    leaf = randn(1, 1, 5).requires_grad_()
    (grad,) = torch.autograd.grad(interpolate(leaf, size=2), leaf, torch.full((1, 1, 2), -0.0))
    assert_same_bits(grad, torch.tensor([[[-0.0, 0.0, -0.0, 0.0, 0.0]]]))


def test_memory_vmap_second_gradients_and_compilation():
    x = randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    y = interpolate(x, scale_factor=2, mode="bilinear")
    assert y.stride() == theirs.interpolate(x.detach(), scale_factor=2, mode="bilinear").stride()
    batch = randn(3, 1, 2, 4)
    found = torch.vmap(lambda v: interpolate(v, size=7, mode="linear"))(batch)
    assert_same_bits(found, torch.stack([interpolate(v, size=7, mode="linear") for v in batch]))
    g = randn(*y.shape, seed=1).requires_grad_()
    (grad,) = torch.autograd.grad(y, x, g, create_graph=True)
    assert_same_bits(torch.autograd.grad(grad, g, x.detach())[0], y.detach())
    step = torch.compile(lambda v: interpolate(v, scale_factor=2, mode="bilinear"), fullgraph=True, backend="aot_eager")
    assert_same_bits(step(x), y)
    arguments = x.detach().requires_grad_(), "linear", [4, 5], [3, 9], [0.0] * 8, False
    torch.library.opcheck(torch.ops.repkernels.resample.default, arguments)
    assert interpolate(torch.empty(0, 2, 3), size=5).shape == (0, 2, 5)


def test_area():
    x = randn(2, 3, 6, 4)
    torch.testing.assert_close(
        interpolate(x, size=(3, 2), mode="area"), theirs.interpolate(x, size=(3, 2), mode="area")
    )


def test_modules():
    x = randn(1, 4, 4, 6)
    for ours, wanted in (
        (nn.Upsample(scale_factor=2), torch.nn.Upsample(scale_factor=2)),
        (nn.UpsamplingNearest2d(size=7), torch.nn.UpsamplingNearest2d(size=7)),
        (nn.UpsamplingBilinear2d(scale_factor=2), torch.nn.UpsamplingBilinear2d(scale_factor=2)),
        (nn.PixelShuffle(2), torch.nn.PixelShuffle(2)),
        (nn.PixelUnshuffle(2), torch.nn.PixelUnshuffle(2)),
        (nn.ChannelShuffle(2), torch.nn.ChannelShuffle(2)),
        (nn.Unfold(2, stride=2), torch.nn.Unfold(2, stride=2)),
    ):
        assert isinstance(ours, type(wanted)) and repr(ours) == repr(wanted)
        torch.testing.assert_close(ours(x), wanted(x))
    columns = randn(1, 16, 6)
    torch.testing.assert_close(nn.Fold((4, 6), 2, stride=2)(columns), torch.nn.Fold((4, 6), 2, stride=2)(columns))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{"padding": 1}, {"dilation": 2}, {"stride": 3}], ids=str)
def test_fold_and_unfold(device, options):
    for dtype in FAST_FORMATS:
        x = randn(2, 3, 7, 8, dtype=dtype)
        leaf = x.to(device).requires_grad_()
        columns = unfold(leaf, (2, 3), **options)
        assert_same_bits(columns.detach(), theirs.unfold(leaf.detach(), (2, 3), **options))
        g = randn(*columns.shape, dtype=dtype, seed=1)
        (grad,) = torch.autograd.grad(columns, leaf, g.to(device))
        out, image = reference.unfold(values(x), values(g), (2, 3), name(dtype), **options)
        assert_same_bits(columns.detach().cpu(), tensor(out, dtype))
        assert_same_bits(grad.cpu(), tensor(image, dtype))
        folded = g.to(device).requires_grad_()
        sums = fold(folded, (7, 8), (2, 3), **options)
        assert_same_bits(sums.detach().cpu(), tensor(image, dtype))
        assert_same_bits(torch.autograd.grad(sums, folded, leaf.detach())[0], columns.detach())


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda x: interpolate(x), ValueError, "either size or scale_factor"),
        (lambda x: interpolate(x, 3, 2.0), ValueError, "only one of"),
        (lambda x: interpolate(x, (3, 3, 3)), ValueError, "size"),
        (lambda x: interpolate(x, scale_factor=(2.0,)), ValueError, "scale_factor"),
        (lambda x: interpolate(x, (3.5, 2)), TypeError, "size"),
        (lambda x: interpolate(x, 3, align_corners=True), ValueError, "align_corners"),
        (lambda x: interpolate(x, 3, mode="linear"), NotImplementedError, "4D"),
        (lambda x: interpolate(x, 3, mode="lanczos"), NotImplementedError, "lanczos"),
        (lambda x: interpolate(x, 3, antialias=True), ValueError, "antialias"),
        (lambda x: interpolate(x, 0), RuntimeError, "greater than 0"),
        (lambda x: interpolate(x.int(), 3), NotImplementedError, "int32"),
        (lambda x: interpolate(x, 3, recompute_scale_factor=True), ValueError, "recompute"),
        (lambda x: unfold(x, 9), RuntimeError, "kernel_size"),
        (lambda x: unfold(x, 2, stride=0), RuntimeError, "stride"),
        (lambda x: fold(x.reshape(1, 10, 4), (4, 4), 2), RuntimeError, "divisible"),
        (lambda x: fold(x.reshape(1, 4, 10), (4, 4), 2), RuntimeError, "sliding blocks"),
    ],
)
def test_what_is_refused(call, error, what):
    with pytest.raises(error, match=what):
        call(torch.zeros(1, 2, 4, 5))
