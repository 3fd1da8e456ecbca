"""SUM on both backends against its definition, to the bit."""

import numpy as np
import pytest
import torch

from reference import sum as reference
from tests.backends import BACKENDS, each_backend
from tests.support import assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Nothing, the borders of halving, of the lanes, of a block, and two levels of blocks.
ROWS = (0, 1, 2, 3, 5, 1023, 1024, 1025, 2048, 3001, 65536, 65537, 200000)
# Half types are widened the same way however many rows there are.
WIDE = (torch.float32, torch.float64)

LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "part of a row": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "shifted": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
}


def check(backend, x):
    found = backend.module("sum").sum_rows(x)
    wanted = tensor(reference.sum_rows(values(x), name(x.dtype)), x.dtype)
    assert_same_bits(found.cpu(), wanted)


@each_backend
@pytest.mark.parametrize(("rows", "dtype"), [(r, d) for r in ROWS for d in (DTYPES if r < 10000 else WIDE)])
def test_lengths(backend, dtype, rows):
    for columns in (3, 1) if rows < 100000 else (2,):
        check(backend, randn(rows, columns, dtype=dtype, seed=rows, device=backend.device))


@each_backend
@pytest.mark.parametrize("columns", [0, 1, 2, 31, 64, 65, 130])
def test_widths(backend, columns):
    for rows in (1, 7, 1500):
        check(backend, randn(rows, columns, seed=columns, device=backend.device))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, dtype, layout):
    for rows in (3, 2500):
        check(backend, LAYOUTS[layout](randn(rows, 5, dtype=dtype, device=backend.device)))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_expanded(backend, dtype):
    check(backend, randn(1, 5, dtype=dtype, device=backend.device).expand(70000, 5))
    check(backend, randn(1100, 1, dtype=dtype, device=backend.device).expand(1100, 40))
    check(backend, randn(1, 1, dtype=dtype, device=backend.device).expand(1100, 3))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_easily_lost(backend, dtype):
    """Zeros of both signs, subnormals, infinities, NaN and cancellation, at each kind of length."""
    info = torch.finfo(dtype)
    special = torch.tensor(
        [0.0, -0.0, info.smallest_normal, -info.smallest_normal / 2, info.max, -info.max, np.inf, -np.inf, np.nan, 1.0],
        dtype=dtype,
    )
    for rows in (1, 2, 3, 1024, 1030, 66000) if dtype in WIDE else (1, 2, 3, 1030):
        chosen = torch.randint(0, len(special), (rows, 24), generator=torch.Generator().manual_seed(rows))
        # Few columns meet an infinity, most only finite values, some only zeros or subnormals.
        chosen[:, 8:] %= 6
        chosen[:, 12:] %= 4
        chosen[:, 16:] %= 2
        x = special[chosen]
        x[:, 20:] = -0.0
        check(backend, x.to(backend.device))


@each_backend
def test_order_is_that_of_the_rows(backend):
    """The sum changes under most permutations of its terms, so each path must respect the order."""
    generator = torch.Generator().manual_seed(2)
    x = randn(5000, 1, seed=1) * 2.0 ** torch.randint(-20, 20, (5000, 1), generator=generator)
    run = backend.module("sum").sum_rows
    orders = (torch.randperm(5000, generator=generator) for _ in range(5))
    assert len({float(run(x[order].to(backend.device))) for order in orders}) > 1
    x = x.to(backend.device)
    check(backend, x)
    check(backend, x.flip(0))


@each_backend
def test_a_column_does_not_depend_on_its_neighbours(backend):
    x = randn(3000, 70, device=backend.device)
    run = backend.module("sum").sum_rows
    whole = run(x)
    for column in (0, 31, 33, 69):
        assert_same_bits(run(x[:, column : column + 1]), whole[column : column + 1])


@pytest.mark.parametrize("busy", [0, 10**9])
@pytest.mark.parametrize("dtype", WIDE)
def test_the_number_of_programs_changes_no_bit(monkeypatch, dtype, busy):
    """Few programs that each take a whole block, or many that share its lanes."""
    backend = BACKENDS[1]
    monkeypatch.setattr(backend.module("sum"), "BUSY", busy)
    for rows, columns in ((1025, 70), (3000, 3), (66000 if dtype == torch.float32 else 2049, 1)):
        x = randn(rows, columns, dtype=dtype, device=backend.device)
        check(backend, x)
        check(backend, x.t().contiguous().t())


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads(threads):
    from repkernels.cpu.sum import sum_rows

    terms = (torch.arange(8 * 80**3, dtype=torch.float64) - 4 * 80**3 + 0.5).float()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for x in (terms[:, None], terms.view(-1, 640), terms.view(640, -1).t()):
            assert_same_bits(sum_rows(x), tensor(reference.sum_rows(values(x), "float32"), torch.float32))
    finally:
        torch.set_num_threads(before)
