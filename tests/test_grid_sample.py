"""grid_sample: both backends against the definition, torch's values and gradients, strange grids, what is refused."""

import pytest
import torch
from torch.nn import functional as theirs

from reference import grid_sample as reference
from reference import matmul as product
from repkernels.nn.functional import affine_grid, grid_sample
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

PADDINGS = ("zeros", "border", "reflection")
# Shapes of input and grid; modes; padding; whether corners align.
CASES = (
    ((2, 3, 4, 5), (2, 2, 4, 2), "bilinear", "zeros", False),
    ((2, 3, 4, 5), (2, 2, 4, 2), "bilinear", "reflection", True),
    ((1, 2, 4, 5), (1, 3, 3, 2), "bilinear", "border", False),
    ((1, 2, 4, 1), (1, 3, 3, 2), "bicubic", "zeros", True),
    ((1, 2, 4, 5), (1, 3, 3, 2), "bicubic", "reflection", False),
    ((1, 2, 4, 5), (1, 3, 3, 2), "bicubic", "border", True),
    ((1, 2, 4, 5), (1, 3, 3, 2), "nearest", "reflection", False),
    ((1, 2, 3, 4, 2), (1, 2, 2, 2, 3), "bilinear", "reflection", False),
    ((1, 2, 3, 4, 2), (1, 2, 2, 2, 3), "nearest", "zeros", True),
)
FORMATS = (torch.float32, torch.bfloat16)


def operands(x_shape, grid_shape, dtype):
    return randn(*x_shape, dtype=dtype), (1.6 * randn(*grid_shape, seed=1)).to(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_definition(device, case):
    for dtype in FORMATS:
        x, grid = operands(*case[:2], dtype)
        leaves = [t.to(device).requires_grad_() for t in (x, grid)]
        y = grid_sample(*leaves, *case[2:])
        g = randn(*y.shape, dtype=dtype, seed=2)
        grads = torch.autograd.grad(y, leaves, g.to(device))
        wanted = reference.grid_sample(values(x), values(grid), values(g), name(dtype), *case[2:])
        for found, expected in zip((y, *grads), wanted, strict=True):
            assert_same_bits(found.detach().cpu(), tensor(expected, dtype))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_close_to_torch(mode, padding):
    for align in (False, True):
        x, grid = (t.requires_grad_() for t in operands((2, 3, 4, 5), (2, 2, 4, 2), torch.float64))
        ours, wanted = (f(x, grid, mode, padding, align) for f in (grid_sample, theirs.grid_sample))
        g = randn(*ours.shape, dtype=torch.float64, seed=2)
        for found, expected in zip(
            (ours, *torch.autograd.grad(ours, (x, grid), g)),
            (wanted, *torch.autograd.grad(wanted, (x, grid), g)),
            strict=True,
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@each_backend
def test_backends(backend):
    """Taps, gather and the grid's gradient of each backend against the definition."""
    for case in (CASES[1], CASES[4], CASES[7]):
        for dtype in (torch.float32, torch.float16):
            x, grid = operands(*case[:2], dtype)
            mode = {"bilinear": 2, "bicubic": 4}[case[2]]
            axes, g = x.ndim - 2, randn(*x.shape[:2], *grid.shape[1:-1], dtype=dtype, seed=2)
            wanted = reference.grid_sample(values(x), values(grid), values(g), name(dtype), *case[2:])
            x, grid, g = (t.to(backend.device) for t in (x, grid, g))
            flat = grid.reshape(-1, axes)
            count = flat.shape[0]
            index = torch.empty(count, mode**axes, dtype=torch.int32, device=x.device)
            weight, slopes, factors = (
                torch.empty(count, *s, device=x.device) for s in ((mode**axes,), (mode**axes, axes), (axes,))
            )
            module = backend.module("grid_sample")
            module.taps(flat, index, weight, slopes, factors, tuple(x.shape[2:]), mode, *case[3:])
            out, of_grid = torch.empty_like(g), torch.empty_like(flat)
            module.gather(x.flatten(2), index, weight, out.flatten(2))
            module.grid_gradient(g.flatten(2), x.flatten(2), index, slopes, factors, of_grid)
            assert_same_bits(out.cpu(), tensor(wanted[0], dtype))
            assert_same_bits(of_grid.view(grid.shape).cpu(), tensor(wanted[2], dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_strange_grids(device):
    """NaN, infinities and far places: nothing with zeros, a corner otherwise; one place for all positions."""
    x = torch.arange(1.0, 13.0, device=device).view(1, 1, 3, 4)
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30], device=device)
    grid = torch.stack([strange, torch.zeros(4, device=device)], 1).view(1, 1, 4, 2)
    assert_same_bits(grid_sample(x, grid, align_corners=True).cpu(), torch.zeros(1, 1, 1, 4))
    border = grid_sample(x, grid, padding_mode="border", align_corners=True)
    assert_same_bits(border.cpu(), torch.tensor([5.0, 8.0, 5.0, 8.0]).view(1, 1, 1, 4))
    leaf = randn(1, 2, 3, 3).to(device).requires_grad_()
    same = torch.zeros(1, 40, 50, 2, device=device)
    g = randn(1, 2, 40, 50, seed=1)
    (grad,) = torch.autograd.grad(grid_sample(leaf, same, "nearest", align_corners=True), leaf, g.to(device))
    wanted = reference.grid_sample(values(leaf), values(same), values(g), "float32", "nearest", "zeros", True)
    assert_same_bits(grad.cpu(), tensor(wanted[1], torch.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_affine_grid(device):
    for sizes, align in (([2, 1, 3, 4], False), ([1, 1, 1, 4], True), ([1, 2, 2, 3, 2], False)):
        axes = len(sizes) - 2
        for dtype in FORMATS:
            theta = randn(sizes[0], axes, axes + 1, dtype=dtype)
            found = affine_grid(theta.to(device), sizes, align)
            base = reference.affine_base(sizes[2:], align, name(dtype))
            wanted = product.matmul(base, values(theta).transpose(0, 2, 1), name(dtype), "ordered")
            assert_same_bits(found.cpu(), tensor(wanted.reshape(sizes[0], *sizes[2:], axes), dtype))
    theta = randn(2, 2, 3).requires_grad_()
    torch.testing.assert_close(affine_grid(theta, [2, 1, 3, 4], False), theirs.affine_grid(theta, [2, 1, 3, 4], False))
    with torch.autocast("cpu", torch.bfloat16):
        assert affine_grid(theta.detach(), [2, 1, 3, 4], False).dtype == torch.float32


def test_transforms_and_compilation():
    x, grid = operands((2, 3, 4, 5), (2, 2, 4, 2), torch.float32)
    batch = torch.stack([x, x * 2])
    found = torch.vmap(lambda v: grid_sample(v, grid, align_corners=False))(batch)
    assert_same_bits(found, torch.stack([grid_sample(v, grid, align_corners=False) for v in batch]))
    leaf = x.clone().requires_grad_()
    y = torch.compile(lambda v: grid_sample(v, grid, align_corners=True), fullgraph=True, backend="aot_eager")(leaf)
    assert_same_bits(y, grid_sample(x, grid, align_corners=True))
    (grad,) = torch.autograd.grad(y, leaf, y.detach())
    wanted = reference.grid_sample(values(x), values(grid), values(y), "float32", "bilinear", "zeros", True)[1]
    assert_same_bits(grad, tensor(wanted, torch.float32))
    arguments = x.requires_grad_(), grid.requires_grad_(), 2, "border", False
    torch.library.opcheck(torch.ops.repkernels.grid_sample.default, arguments)
    (grad,) = torch.autograd.grad(grid_sample(x, grid, align_corners=False).sum(), x)
    assert grad.is_contiguous()  # as compilers are told
    assert grid_sample(x[:0], grid[:0], align_corners=False).shape == (0, 3, 2, 4)
    with pytest.warns(UserWarning, match="align_corners"):
        grid_sample(x, grid)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"mode": "cubic"}, ValueError, "mode"),
        ({"padding_mode": "wrap"}, ValueError, "padding_mode"),
        ({"grid": torch.zeros(1, 2, 2, 3)}, RuntimeError, "grid"),
        ({"grid": torch.zeros(2, 2, 2, 2)}, RuntimeError, "grid"),
        ({"grid": torch.zeros(1, 2, 2)}, RuntimeError, "4D"),
        ({"grid": torch.zeros(1, 2, 2, 2).double()}, RuntimeError, "dtype"),
        ({"input": torch.zeros(1, 2, 0, 3)}, RuntimeError, "non-empty"),
        (
            {"input": torch.zeros(1, 1, 2, 2, 2), "grid": torch.zeros(1, 2, 2, 2, 3), "mode": "bicubic"},
            RuntimeError,
            "4D",
        ),
        ({"input": torch.zeros(1, 1, 2, 2).int()}, NotImplementedError, "int32"),
    ],
)
def test_what_is_refused(options, error, what):
    arguments = {"input": torch.zeros(1, 2, 3, 3), "grid": torch.zeros(1, 2, 2, 2), "align_corners": False}
    with pytest.raises(error, match=what):
        grid_sample(**{**arguments, **options})
    with pytest.raises(ValueError, match="theta"):
        affine_grid(torch.zeros(1, 2, 2), [1, 1, 2, 2], False)
