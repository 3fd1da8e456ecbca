"""`native` attention: near the exact result, and the same bits in every tile, chunk, layout and split over keys."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from repkernels.attention import Attention, Sequences
from repkernels.kernels import attention as kernels
from repkernels.kernels import attention_decode, attention_tiles
from repkernels.kernels.attention_native import use_tile
from repkernels.kernels.attention_tiles import GradientTile, Tile
from tests.backends import BACKENDS
from tests.support import assert_same_bits, randn

DEVICE = BACKENDS[1].device
E = 32


def operand(heads: int, rows: int, seed: int, width: int = E, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return randn(1, heads, rows, width, dtype=dtype, device=DEVICE, seed=seed)


def integers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def run(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences | None = None, mask: Tensor | None = None,
        sinks: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(result, LSE), memory filled with NaN before."""
    rule = Attention(**{"causal": True, "scale": 1 / math.sqrt(q.shape[3]), "contract": "native", **options})
    out = q.new_full((*q.shape[:3], v.shape[3]), math.nan)
    lse = q.new_full(q.shape[:3], math.nan, dtype=torch.float32)
    kernels.attention(q, k, v, out, lse, mask, sinks, sequences or Sequences(), rule)
    return out, lse


def exact(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, scale: float, softcap: float = 0.0, shift: float | Tensor = 0,
          sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(result, LSE) of binary64 operands."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(2, 3) * scale
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = (s + shift).masked_fill(~sees, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks[None, :, None, None].expand(*s.shape[:3], 1)], 3)
    return s.softmax(-1)[..., : k.shape[2]] @ v, s.logsumexp(-1)


def near(actual: Tensor, expected: Tensor, bound: float) -> bool:
    return bool((actual.double() - expected).norm() <= bound * expected.norm())


def triangle(rows: int, left: int = 2**30) -> Tensor:
    i, j = torch.arange(rows)[:, None], torch.arange(rows)
    return ((j <= i) & (j >= i - left)).to(DEVICE)


@pytest.mark.parametrize("what", ["causal", "window", "soft cap", "sinks", "bool mask", "float mask", "negative scale"])
def test_close_to_the_exact_result(what: str) -> None:
    rows = 150
    width = 40 if what == "causal" else E
    dtype = torch.float16 if what == "window" else torch.bfloat16
    q, k, v = (operand(h, rows, seed, width, dtype) for h, seed in ((2, 1), (1, 2), (1, 3)))
    scale = -0.3 if what == "negative scale" else 1 / math.sqrt(width)
    sees, noise = triangle(rows, 100 if what == "window" else 2**30), randn(rows, rows, device=DEVICE, seed=4)
    given: dict[str, Any] = {"scale": scale}
    more: dict[str, Any] = {}
    if what == "window":
        given["window"] = (100, -1)
    elif what == "soft cap":
        given["softcap"] = more["softcap"] = 2.0
    elif what == "sinks":
        given["sinks"] = randn(2, device=DEVICE, seed=5)
        more["sinks"] = given["sinks"].double()
    elif what == "bool mask":
        given["mask"], sees = (noise > 0).expand(1, 2, rows, rows), sees & (noise > 0)
    elif what == "float mask":
        shift = noise.masked_fill(noise > 1, -math.inf)
        given["mask"], sees = shift.expand(1, 2, rows, rows), sees & (noise <= 1)
        more["shift"] = shift.double()
    out, lse = run(q, k, v, **given)
    expected, sums = exact(q.double(), k.double(), v.double(), sees, scale, **more)
    some = sees.any(1)
    assert near(out[:, :, some], expected[:, :, some], 3e-3)
    assert near(lse[:, :, some], sums[:, :, some], 1e-6)
    if what == "bool mask":
        assert not out[:, :, ~some].any()


def test_bits_follow_no_tile() -> None:
    q, k, v = operand(2, 200, 1), operand(1, 200, 2), operand(1, 200, 3)
    out, lse = run(q, k, v)
    for tile, fold in ((Tile(64, 4, 1), 2), (Tile(16, 4, 2), 1)):
        with use_tile(tile, fold):
            again = run(q, k, v)
        assert_same_bits(again[0], out)
        assert_same_bits(again[1], lse)


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_have_the_bits_of_all(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From pages, the keys spread over programs and not; dense; behind padding of NaN."""
    keys, page = 290, 48
    q, k, v = operand(2, keys, 1), operand(1, keys, 2), operand(1, keys, 3)
    expected = run(q, k, v)[0][:, :, -rows:]
    tail, first = q[:, :, -rows:], integers(keys - rows)
    order = [5, 1, 0, 3, 6, 2, 7]
    caches = []
    for x in (k, v):
        cache = x.new_full((8, page, 1, E), math.nan)
        for i in range(0, keys, page):
            piece = x[0, :, i : i + page].transpose(0, 1)
            cache[order[i // page], : len(piece)] = piece
        caches.append(cache.transpose(1, 2))
    paged = Sequences(integers(0, rows), integers(keys), integers(*order, -1)[None])
    assert_same_bits(run(tail, *caches, paged)[0], expected)
    assert_same_bits(run(tail, k, v, Sequences(first_query=first))[0], expected)
    padding = k.new_full((1, 1, 37, E), math.nan)
    behind = (torch.cat([padding, x], 2) for x in (k, v))
    assert_same_bits(run(tail, *behind, Sequences(first_key=integers(37), first_query=first))[0], expected)
    monkeypatch.setattr(attention_decode, "MOST", 0)
    assert_same_bits(run(tail, *caches, paged)[0], expected)


def test_keys_that_a_row_does_not_see_do_not_show() -> None:
    q, k, v = operand(1, 140, 1), operand(1, 140, 2), operand(1, 140, 3)
    expected, _ = run(q, k, v)
    k[0, 0, 134, 3], v[0, 0, 131, 5], v[0, 0, 137, 7] = math.nan, math.inf, math.nan
    with use_tile(Tile(16, 4, 1)):
        out, _ = run(q, k, v)
    assert_same_bits(out[:, :, :131], expected[:, :, :131])
    assert (out[0, 0, 131:134, 5] == math.inf).all()
    others = [e for e in range(E) if e != 5]
    assert_same_bits(out[:, :, 131:134, others], expected[:, :, 131:134, others])
    assert out[:, :, 134:].isnan().all()


def test_missing_pages_and_rows_of_no_sequence() -> None:
    q, k = operand(1, 4, 1), operand(1, 6 * 16, 2).view(6, 16, 1, E).transpose(1, 2)
    sequences = Sequences(integers(0, 1, 2), integers(40, 0), torch.stack([integers(0, -1, 2), integers(-1, -1, -1)]))
    out, lse = run(q, k, k, sequences)
    keys = torch.cat([k[0, 0], k[2, 0, :8]])
    expected, _ = exact(q.double()[:, :, :1], keys.double()[None, None], keys.double()[None, None],
                        torch.ones(1, 24, dtype=torch.bool, device=DEVICE), 1 / math.sqrt(E))  # fmt: skip
    assert near(out[:, :, :1], expected, 3e-3)
    assert not out[:, :, 1:].any() and (lse[:, :, 1:] == -math.inf).all()


def gradients(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scores: Tensor | None = None, mask: Tensor | None = None,
              sequences: Sequences | None = None, **options: Any) -> list[Tensor]:  # fmt: skip
    """(dQ, dK, dV), memory filled with NaN before."""
    rule = Attention(**{"causal": True, "scale": 1 / math.sqrt(E), "contract": "native", **options})
    out, lse = run(q, k, v, sequences, mask, **options)
    found = [torch.full_like(x, math.nan) for x in (q, k, v)]
    kernels.attention_backward(grad, q, k, v, out, lse, mask, None, *found, scores, sequences or Sequences(), rule)
    return found


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_gradients_close_to_the_exact_ones(softcap: float) -> None:
    rows, left = 140, 100
    q, k, v, grad = (operand(h, rows, seed) for h, seed in ((2, 1), (1, 2), (1, 3), (2, 4)))
    shift = randn(1, 2, rows, rows, device=DEVICE, seed=5) if softcap else torch.zeros(1, 2, rows, rows, device=DEVICE)
    scores = torch.full((1, 2, rows, rows), math.nan, device=DEVICE)
    found = gradients(q, k, v, grad, scores, shift if softcap else None, window=(left, -1), softcap=softcap)
    wide = [x.double().requires_grad_() for x in (q, k, v, shift)]
    expected, _ = exact(*wide[:3], triangle(rows, left), 1 / math.sqrt(E), softcap, wide[3])
    for actual, x in zip((*found, scores), torch.autograd.grad(expected, wide, grad.double()), strict=True):
        assert near(actual, x, 4e-3)


def test_gradients_follow_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed sequences have the bits that they have alone; a NaN in the last query's row reaches what it sees only."""
    lengths = (30, 150)
    q, k, v, grad = (operand(h, sum(lengths), seed) for h, seed in ((2, 1), (1, 2), (1, 3), (2, 4)))
    cut = integers(0, *accumulate(lengths))
    packed = gradients(q, k, v, grad, sequences=Sequences(cut, cut))
    alone = [gradients(*(x[:, :, a:b] for x in (q, k, v, grad))) for a, b in ((0, 30), (30, 180))]
    for both, first, second in zip(packed, *alone, strict=True):
        assert_same_bits(both, torch.cat([first, second], 2))
    monkeypatch.setitem(attention_tiles.KEY_GRADIENT, 64, GradientTile(16, 16, 4, 1))
    special = grad[:, :, :30].clone()
    special[:, :, 20, 3] = math.nan
    found = gradients(q[:, :, :30], k[:, :, :30], v[:, :, :30], special)
    for actual, expected in zip(found[1:], alone[0][1:], strict=True):
        assert_same_bits(actual[:, :, 21:], expected[:, :, 21:])
    assert found[2][:, :, :21, 3].isnan().all()
