"""digest: one string per value, whatever holds it and wherever it lies."""

import copy
import hashlib
from collections import OrderedDict

import numpy as np
import pytest
import torch

import repkernels
from reference import digest as reference
from tests.support import DEVICES, name, randn, values

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 7), (2, 3, 4)])
def test_equals_the_reference(dtype, shape):
    x = randn(*shape, dtype=dtype)
    assert repkernels.digest(x) == reference.tensor(values(x), name(dtype))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_and_bool(dtype):
    x = torch.arange(-3, 9).to(dtype).reshape(3, 4)
    assert repkernels.digest(x) == reference.tensor(x.numpy(), name(dtype))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned(dtype):
    x = torch.tensor([0, 1, 65535], dtype=dtype)
    assert repkernels.digest(x) == reference.tensor(x.numpy(), name(dtype))


def test_the_bytes_are_those_that_the_specification_names():
    expected = b"tensor\0float32\0" + b"2,1\0" + np.array([1.0, -0.0], "<f4").tobytes()
    assert repkernels.digest(torch.tensor([[1.0], [-0.0]])) == hashlib.sha256(expected).hexdigest()


def test_complex_is_two_numbers():
    x = torch.tensor([1 + 2j, complex(float("nan"), -1)])
    pattern = np.array([1.0, 2.0, np.nan, -1.0], "<f4")
    pattern.view("<u4")[2] = 0x7FC00000
    assert repkernels.digest(x) == hashlib.sha256(b"tensor\0complex64\0" + b"2\0" + pattern.tobytes()).hexdigest()
    assert repkernels.digest(x.conj()) == repkernels.digest(x.conj().resolve_conj())


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_one_value_and_zeros_are_two(dtype):
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    quiet = torch.tensor([float("nan")], dtype=dtype)
    other = (quiet.view(integer) | 5).view(dtype)
    assert repkernels.digest(quiet) == repkernels.digest(other) == repkernels.digest(-other)
    assert repkernels.digest(torch.tensor(0.0, dtype=dtype)) != repkernels.digest(torch.tensor(-0.0, dtype=dtype))


def test_dtype_and_shape_count():
    x = torch.zeros(4)
    others = [x.int(), x.reshape(2, 2), x.reshape(1, 4), x.bfloat16(), [x], {"a": x}]
    assert len({repkernels.digest(y) for y in [x, *others]}) == 1 + len(others)


def test_layout_does_not():
    x = randn(6, 5)
    wide = randn(6, 10)
    wide[:, ::2] = x
    for y in (x.t().contiguous().t(), wide[:, ::2], torch.nn.Parameter(x), x.clone().requires_grad_()):
        assert repkernels.digest(y) == repkernels.digest(x)
    assert repkernels.digest(x[0].expand(3, 5)) == repkernels.digest(x[0].repeat(3, 1))


@pytest.mark.parametrize("shape", [(100,), (7, 30), (2, 3, 41), (3, 1, 50)])
def test_pieces_change_nothing(shape, monkeypatch):
    x = randn(*shape)
    views = [x, x.mT.contiguous().mT if x.ndim > 1 else x[::2].repeat_interleave(2), x.flip(0)]
    whole = [repkernels.digest(y) for y in views]
    monkeypatch.setitem(repkernels.digest.__globals__, "CHUNK", 16)
    assert [repkernels.digest(y) for y in views] == whole


@pytest.mark.parametrize("device", DEVICES)
def test_devices_agree(device):
    x = randn(33, 7, dtype=torch.bfloat16)
    x[0, 0] = float("nan")
    assert repkernels.digest(x.to(device)) == repkernels.digest(x)


def test_containers_equal_the_reference():
    x, y = randn(3), torch.arange(2)
    inner = reference.mapping({"y": reference.tensor(y.numpy(), "int64"), 3: reference.scalar(None)})
    expected = reference.sequence([reference.tensor(values(x), "float32"), inner, reference.scalar(0.5)])
    for container in ([x, {"y": y, 3: None}, 0.5], (x, OrderedDict([("y", y), (3, None)]), 0.5)):
        assert repkernels.digest(container) == expected


def test_scalars():
    for value in (None, True, 1, 1.0, "1", float("inf"), -0.0, 0.0):
        assert repkernels.digest(value) == reference.scalar(value)
    assert len({repkernels.digest(v) for v in (None, True, 1, 1.0, "1", 0.0, -0.0)}) == 7


def test_the_order_of_keys_counts():
    assert repkernels.digest({"a": 1, "b": 2}) != repkernels.digest({"b": 2, "a": 1})


def test_modules_and_optimizers_are_their_state():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert repkernels.digest(model) == repkernels.digest(model.state_dict()) == repkernels.digest(copy.deepcopy(model))
    before = repkernels.digest(optimizer), repkernels.digest(model)
    model(randn(5, 3)).sum().backward()
    optimizer.step()
    assert repkernels.digest(optimizer) != before[0]
    assert repkernels.digest(model) != before[1]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.zeros(2, dtype=torch.float8_e5m2),
        object,
        lambda: {1, 2},
        lambda: b"bytes",
        lambda: 1j,
        lambda: np.ones(2),
        lambda: [object()],
    ],
    ids=["sparse", "csr", "quantised", "meta", "float8", "object", "set", "bytes", "complex", "ndarray", "nested"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_has_no_digest_raises(bad):
    value = bad()
    with pytest.raises(TypeError, match="^x: "):
        repkernels.digest(value)
