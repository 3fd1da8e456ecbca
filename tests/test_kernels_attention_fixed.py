"""Triton's attention under `fixed` and `ordered` against the reference: on a GPU, or in the interpreter without one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference.attention as reference
from repkernels.attention import Attention, Sequences
from repkernels.kernels import attention as kernels
from repkernels.kernels.attention_fixed import FixedTile, use_fixed_tile
from repkernels.kernels.engine import use_engine
from tests.support import assert_same_bits, name, tensor, values

pytestmark = pytest.mark.slow

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def operands(
    q_shape: tuple[int, ...], kv_shape: tuple[int, ...], Ev: int, dtype: torch.dtype, special: bool = False
) -> list[Tensor]:
    """q, k, v (..., length, width) and the gradient of the result: normal numbers times powers of two.

    special: infinities and NaN that some rows see and others do not, and rows of zeros.
    """
    rng = np.random.default_rng([*q_shape, *kv_shape, Ev])
    shapes = (q_shape, kv_shape, (*kv_shape[:-1], Ev), (*q_shape[:-1], Ev))
    q, k, v, grad = (torch.from_numpy(rng.standard_normal(s) * 2.0 ** rng.integers(-3, 4, s)).to(dtype) for s in shapes)
    k[..., 5, :] = 0
    v[..., 7, :] = 0
    if special:
        v[0, 0, 3, 2], v[0, 0, 9, 1], v[0, 0, -1, 0], k[0, 0, -2, 1] = np.inf, -np.inf, np.nan, np.inf
        grad[0, 0, 2, 2], q[0, 1, 1, 1] = np.inf, np.nan
    return [q, k, v, grad]


def rule_of(E: int, contract: str, **options: Any) -> tuple[Attention, reference.Rule]:
    scale = float(np.float32(E**-0.5))
    attention = Attention(**{"causal": True, "scale": scale, "contract": contract, **options})
    return attention, reference.Rule(contract, scale, attention.causal, attention.window, attention.softcap)


def dense(
    contract: str, dtype: torch.dtype, rows: int, positions: dict[str, list[int]], mask: Tensor | None = None,
    sinks: list[float] | None = None, size: int = 150, widths: tuple[int, int] = (16, 16), gradients: bool = True,
    special: bool = False, **options: Any,
) -> None:  # fmt: skip
    """The kernels' bits are the reference's, in both directions, over two query heads of one KV head."""
    batch = len(positions["first_query"])
    E, Ev = widths
    q, k, v, grad = operands((batch, 2, rows, E), (batch, 1, size, E), Ev, dtype, special)
    attention, rule = rule_of(E, contract, **options)
    where = {n: np.array(x) for n, x in positions.items()}
    masked = None if mask is None else mask.numpy()
    bias = None if sinks is None else np.array(sinks, np.float32)
    out, lse = reference.forward(values(q), values(k), values(v), name(dtype), rule, masked, bias, **where)
    on = {n: torch.tensor(x, dtype=torch.int32, device=DEVICE) for n, x in positions.items()}
    shape = (batch, 2, rows, size)
    rest = (
        None if mask is None else mask.expand(shape).to(DEVICE),
        None if sinks is None else torch.tensor(sinks, device=DEVICE),
        Sequences(**on),
        attention,
    )
    q, k, v, grad = (x.to(DEVICE) for x in (q, k, v, grad))
    made, sums = torch.empty_like(grad), torch.empty(shape[:3], device=DEVICE)
    kernels.attention(q, k, v, made, sums, *rest)
    assert_same_bits(made.cpu(), tensor(out, dtype))
    assert_same_bits(sums.cpu(), tensor(lse, FP32))
    if not gradients:
        return
    plain = [values(x) for x in (grad, q, k, v)]
    expected = reference.backward(*plain, out, lse, name(dtype), rule, masked, bias, **where)
    found = [torch.empty_like(x) for x in (q, k, v)] + [torch.empty(shape, device=DEVICE)]
    kernels.attention_backward(grad, q, k, v, made, sums, *rest[:2], *found, *rest[2:])
    for actual, wanted, kind in zip(found, expected[:4], (dtype, dtype, dtype, FP32), strict=True):
        assert_same_bits(actual.cpu(), tensor(wanted, kind))


@pytest.mark.parametrize(("contract", "dtype"), [("fixed16", BF16), ("ordered", FP32)])
def test_few_rows(contract: str, dtype: torch.dtype) -> None:
    """Spread over two segments: stacked digits, states merged by a second kernel."""
    dense(contract, dtype, 5, {"first_query": [125]})


@pytest.mark.parametrize(("contract", "dtype"), [("fixed8", BF16), ("fixed24", FP32), ("fixed32", FP32)])
def test_other_digits(contract: str, dtype: torch.dtype) -> None:
    dense(contract, dtype, 3, {"first_query": [9]}, size=12)


@pytest.mark.parametrize("contract", ["fixed16", "ordered"])
def test_not_finite(contract: str) -> None:
    """What a row does not see does not touch it."""
    dense(contract, BF16, 6, {"first_query": [8]}, size=14, special=True)


def test_options() -> None:
    """Padding on the left, a start that has rolled out, a window to both sides, a soft cap, sinks, odd widths."""
    dense("fixed16", FP16, 3, {"first_query": [140, 340], "first_key": [3, -200]}, sinks=[1.0, -3.0], widths=(24, 40),
          causal=False, window=(100, 2), softcap=2.0)  # fmt: skip


@pytest.mark.parametrize("contract", ["fixed24", "ordered"])
def test_masks(contract: str) -> None:
    """Numbers and booleans; one row sees nothing."""
    rng = np.random.default_rng(0)
    mask = torch.from_numpy(rng.standard_normal((1, 1, 4, 150)).astype(np.float32))
    mask[..., 30:] = -np.inf
    mask[0, 0, 1] = -np.inf
    dense(contract, FP32, 4, {"first_query": [0]}, mask=mask, causal=False)
    dense(contract, FP32, 4, {"first_query": [0]}, mask=mask > 0.5, causal=False, gradients=False)


@pytest.mark.parametrize("tile", [FixedTile(32, 8, 1, 1), FixedTile(16, 4, 1, 2)])
def test_many_rows(tile: FixedTile) -> None:
    """int8 products of digits made beforehand, in whole segments and in part."""
    with use_fixed_tile(tile):
        dense("fixed16", BF16, 20, {"first_query": [270, 460], "first_key": [3, -200]}, size=290, sinks=[1.0, -3.0],
              widths=(24, 40), causal=False, window=(150, 2), gradients=False)  # fmt: skip


def test_many_rows_not_finite() -> None:
    """Sequences for which single multiplications would not do are computed by the kernel for all."""
    with use_fixed_tile(FixedTile(32, 8, 1, 1)):
        dense("fixed16", BF16, 17, {"first_query": [3, 0]}, size=20, special=True, gradients=False)


def test_many_rows_without_int8() -> None:
    with use_engine("window16"):
        dense("fixed16", BF16, 17, {"first_query": [0]}, size=20, gradients=False)


@pytest.mark.parametrize("contract", ["fixed16", "ordered"])
def test_packed_and_paged(contract: str) -> None:
    """Sequences one after another, an empty one and rows behind the last among them, and the same out of pages."""
    queries, keys = np.array([0, 20, 20, 23]), np.array([0, 150, 150, 153])
    q, k, v, grad = operands((1, 2, 25, 16), (1, 1, 156, 16), 16, BF16)
    attention, rule = rule_of(16, contract)
    rows = [values(x[0].transpose(0, 1)) for x in (q, k, v, grad)]
    out, lse = reference.packed(*rows[:3], queries, keys, "bfloat16", rule)
    q, k, v, grad = (x.to(DEVICE) for x in (q, k, v, grad))
    counts = [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (queries, keys)]
    made, sums = torch.empty_like(grad), torch.empty((1, 2, 25), device=DEVICE)
    with use_fixed_tile(FixedTile(16, 4, 1, 1)):
        kernels.attention(q, k, v, made, sums, None, None, Sequences(*counts), attention)
    assert_same_bits(made[0].transpose(0, 1).cpu(), tensor(out, BF16))
    assert_same_bits(sums[0].cpu(), tensor(lse, FP32))

    expected = reference.packed_backward(rows[3], *rows[:3], out, lse, queries, keys, "bfloat16", rule)
    found = [torch.empty_like(x) for x in (q, k, v)]
    kernels.attention_backward(grad, q, k, v, made, sums, None, None, *found, None, Sequences(*counts), attention)
    for actual, wanted in zip(found, expected[:3], strict=True):
        assert_same_bits(actual[0].transpose(0, 1).cpu(), tensor(wanted, BF16))

    table = torch.full((3, 10), -1, dtype=torch.int32)
    table[0], table[2, 0] = torch.arange(9, -1, -1), 10
    pages = torch.full((2, 11, 1, 16, 16), float("nan"), dtype=BF16, device=DEVICE)
    for p in range(10):
        part = slice(p * 16, min(p * 16 + 16, 150))
        pages[0, 9 - p, :, : part.stop - part.start] = k[0, :, part]
        pages[1, 9 - p, :, : part.stop - part.start] = v[0, :, part]
    pages[0, 10, :, :3], pages[1, 10, :, :3] = k[0, :, 150:153], v[0, :, 150:153]
    lengths = torch.tensor([150, 0, 3], dtype=torch.int32, device=DEVICE)
    again = torch.empty_like(made)
    kernels.attention(q, *pages, again, None, None, None, Sequences(counts[0], lengths, table.to(DEVICE)), attention)
    assert_same_bits(again.cpu(), made.cpu())
