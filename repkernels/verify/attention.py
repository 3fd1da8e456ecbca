"""What must change no bit of attention: neighbours, how queries and keys are cut, where keys lie in memory, padding.

One sequence, attended whole, is what everything else is compared with. Each check takes the contract, dtype and
device, and returns None or the first difference.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify import inputs
from repkernels.verify.compare import difference
from repkernels.verify.invariance import Check

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 4, 2, 64, 48
# Several segments, the last one not full; on a GPU more rows and keys than any tile has.
LENGTH = {"cpu": 300, "cuda": 1100}
PAGE_SIZES = (16, 64, 256)
# The window of "window": what it leaves out lies in other segments.
WINDOW = 170


class Form(NamedTuple):
    """Options of one attention, and whether its keys are limited to a window."""

    name: str
    options: dict[str, Any]
    sinks: bool = False


FORMS = (Form("causal", {}), Form("window, soft cap, sinks", {"window": (WINDOW, -1), "softcap": 4.0}, sinks=True))


class Whole(NamedTuple):
    """A sequence, q (T, Hq, E), k (T, Hkv, E), v (T, Hkv, Ev), and its attention (T, Hq, Ev)."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    out: Tensor


def batches(contract: str, dtype: str, device: torch.device) -> str | None:
    """A row alone, and a sequence among others, dense, packed and paged, has the bits of the whole."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        length = len(x.q)
        for row in (0, 1, 15, 16, 127, 128, 200, length - 1):
            found = _dense(x, slice(row, row + 1), slice(0, length))
            if message := difference(found, x.out[row : row + 1]):
                return f"{form.name}, row {row} alone: {message}"
        among = [_rolled(x.q), x.q, _rolled(x.q, 3)], [_rolled(x.k), x.k, x.k], [x.v, x.v, _rolled(x.v)]
        q, k, v = (torch.stack(part).transpose(1, 2) for part in among)
        dense = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, **x.options)
        if message := difference(dense[1].transpose(0, 1), x.out):
            return f"{form.name}, among three of a batch: {message}"
        for before, after in (((1, 1), (17, 130)), ((130, 140), (1, length - 9)), ((length, length), (5, 5))):
            sizes = [before, (length, length), after, (7, length)]
            found = _packed(x, sizes)[1]
            if message := difference(found, x.out):
                return f"{form.name}, packed between {before} and {after} queries and keys: {message}"
            if message := difference(_paged(x, sizes, 16)[1], x.out):
                return f"{form.name}, paged between {before} and {after} queries and keys: {message}"
    return None


def chunks(contract: str, dtype: str, device: torch.device) -> str | None:
    """A prefill in chunks of any size, and decoding token by token, has the bits of the whole."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        length = len(x.q)
        for size in (1, 16, 100, 128, 257):
            starts = range(length - 20, length) if size == 1 else range(0, length, size)
            for start in starts:
                end = min(start + size, length)
                for name, found in (
                    ("dense", _dense(x, slice(start, end), slice(0, end))),
                    ("packed", _packed(x, [(end - start, end)])[0]),
                    ("paged", _paged(x, [(end - start, end)], 16)[0]),
                ):
                    if message := difference(found, x.out[start:end]):
                        return f"{form.name}, {name}, rows {start} to {end - 1} of a chunk: {message}"
    return None


def pages(contract: str, dtype: str, device: torch.device) -> str | None:
    """Pages of any size, in any order, give the bits of one run of keys, whatever the free places hold."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        length = len(x.q)
        for size in PAGE_SIZES:
            for sizes in ([(length, length)], [(1, length), (3, 140)], [(130, length - 1), (1, 1), (20, 129)]):
                if message := _differing(_paged(x, sizes, size), x.out, sizes):
                    return f"{form.name}, pages of {size}, (queries, keys) {sizes}: {message}"
    return None


def padding(contract: str, dtype: str, device: torch.device) -> str | None:
    """Padding of any length before a sequence, keys after it, and a cache without its oldest keys change no bit."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        length = len(x.q)
        for count in (1, 37, 130):
            q, k, v = (torch.cat([torch.full_like(y[:count], torch.nan), y]) for y in (x.q, x.k, x.v))
            after = torch.full_like(k[:5], torch.nan)
            k, v = torch.cat([k, after]), torch.cat([v, torch.full_like(v[:5], torch.nan)])
            found = _attend(x, [q, k, v], count, -count)
            if message := difference(found[count:], x.out):
                return f"{form.name}, behind {count} of padding: {message}"
            if found[:count].count_nonzero():
                return f"{form.name}: {count} queries of padding see a key"
        if "window" in form.options:
            for gone in (1, 64, 128, length - WINDOW - 10):
                rows = slice(gone + WINDOW, length)
                found = _attend(x, [x.q[rows], x.k[gone:], x.v[gone:]], -gone, gone + WINDOW)
                if message := difference(found, x.out[rows]):
                    return f"{form.name}, without the first {gone} keys: {message}"
    return None


def masks(contract: str, dtype: str, device: torch.device) -> str | None:
    """What a mask of either kind leaves visible has the bits that is_causal and a window give it."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        at = torch.arange(len(x.q), device=device)
        visible = at[None, :] <= at[:, None]
        if "window" in form.options:
            visible = visible & (at[None, :] >= at[:, None] - WINDOW)
        options = {name: value for name, value in x.options.items() if name != "window"}
        added = torch.zeros(visible.shape, dtype=x.q.dtype, device=device).masked_fill(~visible, -torch.inf)
        for name, mask in (
            ("bool", visible),
            ("added", added),
            ("bool for each head", visible.expand(1, HEADS, -1, -1)),
        ):
            q, k, v = (y.transpose(0, 1)[None] for y in (x.q, x.k, x.v))
            out = functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **options)
            if message := difference(out[0].transpose(0, 1), x.out):
                return f"{form.name}, {name} mask: {message}"
    return None


def gradients(contract: str, dtype: str, device: torch.device) -> str | None:
    """The gradients of a sequence are those it has alone, packed and in a batch; `native` apart, behind padding too."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        length = len(x.q)
        grad = inputs.operand("ordinary", dtype, tuple(x.out.shape), 0, 3).to(device)
        wanted = _gradients(x, [(length, length)], grad)
        for before, after in (((1, 1), (17, 130)), ((130, 140), (5, 5))):
            sizes = [before, (length, length), after]
            whole = torch.cat([grad[: before[0]], grad, grad[: after[0]]])
            found = _gradients(x, sizes, whole)
            rows, keys = (slice(before[i], before[i] + length) for i in (0, 1))
            for name, value, part in zip("qkv", found, (rows, keys, keys), strict=True):
                if message := difference(value[part], wanted["qkv".index(name)]):
                    return f"{form.name}, packed between {before} and {after}, gradient of {name}: {message}"
        for count in (0,) if contract == "native" else (0, 37, 130):
            for name, value, alone in zip("qkv", _dense_gradients(x, grad, count), wanted, strict=True):
                if message := difference(value, alone):
                    return f"{form.name}, dense behind {count} of padding, gradient of {name}: {message}"
    return None


def layouts(contract: str, dtype: str, device: torch.device) -> str | None:
    """Views of one projection, heads outermost or innermost, strided and misaligned operands change no bit."""
    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        parts = [y.flatten(1) for y in (x.q, x.k, x.v)]
        widths = [y.shape[1] for y in parts]
        fused = torch.cat(parts, 1).split(widths, 1)
        for name, operands in (
            ("parts of one tensor", [y.view_as(z) for y, z in zip(fused, (x.q, x.k, x.v), strict=True)]),
            ("heads outermost", [y.transpose(0, 1).contiguous().transpose(0, 1) for y in (x.q, x.k, x.v)]),
            ("strided", [y.repeat_interleave(2, -1)[..., ::2] for y in (x.q, x.k, x.v)]),
            ("misaligned", [torch.cat([y.new_zeros(1), y.flatten()])[1:].view(y.shape) for y in (x.q, x.k, x.v)]),
        ):
            if message := difference(_varlen(operands, [(len(x.q), len(x.q))], x.options), x.out):
                return f"{form.name}, packed, {name}: {message}"
            if message := difference(_attend(x, operands), x.out):
                return f"{form.name}, dense, {name}: {message}"
    return None


def threads(contract: str, dtype: str, device: torch.device) -> str | None:
    """Any number of CPU threads gives the bits of one thread, gradients too."""
    before = torch.get_num_threads()
    try:
        for form in FORMS:
            torch.set_num_threads(1)
            x = _whole(form, contract, dtype, device)
            grad, sizes = x.out, [(len(x.q), len(x.q))]
            wanted = _gradients(x, sizes, grad)
            for count in (2, 3):
                torch.set_num_threads(count)
                found = _packed(x, sizes)[0], *_gradients(x, sizes, grad)
                for name, value, one in zip(("result", "q", "k", "v"), found, (x.out, *wanted), strict=True):
                    if message := difference(value, one):
                        return f"{form.name}, {count} threads, {name}: {message}"
    finally:
        torch.set_num_threads(before)
    return None


def tiles(contract: str, dtype: str, device: torch.device) -> str | None:
    """`native`: any tile, and keys of one row that no programs share, give the bits that the launcher's choice has."""
    from triton.runtime.errors import OutOfResources

    from repkernels.kernels.attention_native import TILES, Tile, use_tile

    for form in FORMS:
        x = _whole(form, contract, dtype, device)
        length = len(x.q)
        for tile in dict.fromkeys((*TILES.values(), Tile(16, 4, 2), Tile(64, 4, 2))):
            for start in (0, 130, length - 1):
                try:
                    with use_tile(tile):
                        found = _packed(x, [(length - start, length)])[0]
                except OutOfResources:
                    continue
                if message := difference(found, x.out[start:]):
                    return f"{form.name}, {tile}, rows from {start}: {message}"
    return None


def checks(contract: str, device: torch.device) -> Iterator[tuple[str, Check]]:
    """The checks that concern a contract on a device."""
    yield "batches", batches
    yield "chunks", chunks
    yield "pages", pages
    yield "padding", padding
    yield "masks", masks
    yield "gradients", gradients
    yield "layouts", layouts
    if device.type == "cpu":
        yield "threads", threads
    elif contract == "native":
        yield "tiles", tiles


def _whole(form: Form, contract: str, dtype: str, device: torch.device) -> Whole:
    length = LENGTH[device.type]
    q, k, v = (
        inputs.operand("ordinary", dtype, (length, heads, width), 0, stream).to(device)
        for stream, (heads, width) in enumerate(((HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH)))
    )
    options = form.options | {"contract": contract}
    if form.sinks:
        options["sinks"] = inputs.operand("ordinary", "float32", (HEADS,), 0, 5).to(device)
    return Whole(q, k, v, options, _varlen([q, k, v], [(length, length)], options))


def _varlen(operands: list[Tensor], sizes: list[tuple[int, int]], options: dict[str, Any]) -> Tensor:
    q, k, v = operands
    queries, keys = _ends(sizes, q.device)
    return functional.varlen_attention(q, k, v, queries, keys, **options)


def _ends(sizes: list[tuple[int, int]], device: torch.device) -> list[Tensor]:
    """The cumulated numbers of queries and of keys."""
    counts = torch.tensor([(0, 0), *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return [counts[:, i].contiguous().to(device) for i in (0, 1)]


def _dense(x: Whole, rows: slice, keys: slice) -> Tensor:
    """The attention of some rows over some keys, by the dense form."""
    return _attend(x, [x.q[rows], x.k[keys], x.v[keys]], None, rows.start)


def _attend(x: Whole, operands: list[Tensor], first_key: int | None = None, first_query: int | None = None) -> Tensor:
    """Causal attention of one sequence, q (L, Hq, E), k (S, Hkv, E), by the dense form: (L, Hq, Ev)."""
    options = dict(x.options)
    for name, value in (("first_key", first_key), ("first_query", first_query)):
        if value is not None:
            options[name] = torch.tensor([value], dtype=torch.int32, device=x.q.device)
    q, k, v = (y.transpose(0, 1)[None] for y in operands)
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, **options)
    return out[0].transpose(0, 1)


def _parts(x: Whole, sizes: list[tuple[int, int]]) -> list[list[Tensor]]:
    """q, k, v of sequences of so many queries and keys: the last queries before the end of the keys."""
    return [
        [x.q[keys - queries : keys] for queries, keys in sizes],
        [x.k[:keys] for _, keys in sizes],
        [x.v[:keys] for _, keys in sizes],
    ]


def _packed(x: Whole, sizes: list[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Each sequence's result, of all packed."""
    out = _varlen([torch.cat(part) for part in _parts(x, sizes)], sizes, x.options)
    return out.split([queries for queries, _ in sizes])


def _paged(x: Whole, sizes: list[tuple[int, int]], page_size: int) -> tuple[Tensor, ...]:
    """The same from pages in reverse order, every second one and all free places NaN."""
    q, keys, values = _parts(x, sizes)
    counts = [-(-n // page_size) for _, n in sizes]
    table = torch.full((len(sizes), max(counts) + 1), -1, dtype=torch.int32)
    free = 2 * sum(counts)
    caches = [y.new_full((free, page_size, *y.shape[1:]), torch.nan) for y in (x.k, x.v)]
    for b, count in enumerate(counts):
        for page in range(count):
            free -= 2
            table[b, page] = free
            for cache, parts in zip(caches, (keys, values), strict=True):
                part = parts[b][page * page_size : (page + 1) * page_size]
                cache[free, : len(part)] = part
    lengths = torch.tensor([n for _, n in sizes], dtype=torch.int32, device=x.q.device)
    ends = _ends(sizes, x.q.device)[0]
    table = table.to(x.q.device)
    out = functional.paged_attention(torch.cat(q), caches[0], caches[1], table, ends, lengths, **x.options)
    return out.split([queries for queries, _ in sizes])


def _gradients(x: Whole, sizes: list[tuple[int, int]], grad: Tensor) -> tuple[Tensor, ...]:
    """Of q, k, v packed."""
    leaves = [torch.cat(part).requires_grad_() for part in _parts(x, sizes)]
    return torch.autograd.grad(_varlen(leaves, sizes, x.options), leaves, grad)


def _dense_gradients(x: Whole, grad: Tensor, count: int) -> list[Tensor]:
    """Of q, k, v behind `count` of padding, dense, without those of the padding."""
    leaves = [torch.cat([y[:count], y]).requires_grad_() for y in (x.q, x.k, x.v)]
    first = (count, -count) if count else (None, None)
    found = torch.autograd.grad(_attend(x, leaves, *first), leaves, torch.cat([grad[:count], grad]))
    return [y[count:] for y in found]


def _rolled(x: Tensor, by: int = 1) -> Tensor:
    return x.roll(by, 0)


def _differing(found: tuple[Tensor, ...], out: Tensor, sizes: list[tuple[int, int]]) -> str | None:
    for b, (value, (queries, keys)) in enumerate(zip(found, sizes, strict=True)):
        if message := difference(value, out[keys - queries : keys]):
            return f"sequence {b}: {message}"
    return None
