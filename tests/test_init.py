"""nn.init: the reference's bits, torch's names, arguments and errors."""

import inspect
import math

import numpy as np
import pytest
import torch

import repkernels
from reference import init as reference
from reference import philox
from reference import random as reference_random
from repkernels import random
from repkernels.nn import init
from tests.support import DEVICES, assert_same_bits, name, tensor

SHAPE = (6, 5, 3)  # fan_in 15, fan_out 18

UNIFORM = {
    "uniform_": (lambda x: init.uniform_(x, -0.5, 2.0), (-0.5, 2.0)),
    "xavier_uniform_": (lambda x: init.xavier_uniform_(x, 1.5), math.sqrt(3.0) * (1.5 * math.sqrt(2.0 / 33))),
    "kaiming_uniform_": (init.kaiming_uniform_, math.sqrt(3.0 / 15) * math.sqrt(2.0)),
    "kaiming_uniform_ out": (
        lambda x: init.kaiming_uniform_(x, 0.2, "fan_out"),
        math.sqrt(3.0 / 18) * math.sqrt(2.0 / (1 + 0.2 * 0.2)),
    ),
}
NORMAL = {
    "normal_": (lambda x: init.normal_(x, 0.5, 2.0), (0.5, 2.0)),
    "xavier_normal_": (init.xavier_normal_, (0.0, math.sqrt(2.0 / 33))),
    "kaiming_normal_": (lambda x: init.kaiming_normal_(x, nonlinearity="relu"), (0.0, math.sqrt(2.0) / math.sqrt(15))),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("what", [*UNIFORM, *NORMAL])
def test_draws(device, dtype, what):
    repkernels.manual_seed(3)
    random.next_stream()
    x = torch.empty(SHAPE, dtype=dtype, device=device)
    if what in UNIFORM:
        fill, bounds = UNIFORM[what]
        low, high = bounds if isinstance(bounds, tuple) else (-bounds, bounds)
        wanted = philox.uniform(3, 1, 90, low, high)
    else:
        fill, (mean, std) = NORMAL[what]
        wanted = reference_random.normal(3, 1, 90, mean, std)
    assert fill(x) is x
    assert_same_bits(x.cpu(), tensor(wanted.reshape(SHAPE), dtype))
    assert random.get_state()["stream"] == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("bounds", "dtype"), list(zip([(-2.0, 2.0), (0.1, 0.6), (-0.05, 10.0)], DTYPES, strict=True)))
def test_trunc_normal(device, dtype, bounds):
    x = torch.empty(4, 50, dtype=dtype, device=device)
    init.trunc_normal_(x, 0.1, 0.9, *bounds, generator=random.Generator(5))
    wanted = reference.trunc_normal((4, 50), 5, 0, 0.1, 0.9, *bounds)
    assert_same_bits(x.cpu(), tensor(wanted, dtype))
    assert np.float32(bounds[0]) <= wanted.min()
    assert wanted.max() <= np.float32(bounds[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 17), (12, 3), (3, 2, 5), (1, 1030), (1, 1)])
def test_orthogonal(dtype, shape):
    x = torch.empty(shape, dtype=dtype)
    init.orthogonal_(x, 1.5, generator=random.Generator(5))
    assert_same_bits(x, tensor(reference.orthogonal(shape, 5, 0, 1.5, name(dtype)), dtype))
    matrix = x.double().reshape(shape[0], -1) / 1.5
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    error = (matrix @ matrix.t() - torch.eye(len(matrix), dtype=torch.float64)).abs().max()
    assert error < {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float64: 1e-13}[dtype]


@pytest.mark.parametrize("device", DEVICES)
def test_sparse(device):
    x = torch.empty(10, 4, device=device)
    init.sparse_(x, 0.25, generator=random.Generator(5))
    assert_same_bits(x.cpu(), torch.from_numpy(reference.sparse((10, 4), 5, 0, 0.25, 0.01)))
    assert ((x == 0).sum(0) == 3).all()


def test_subnormals_stay_where_the_caller_flushes_them():
    results = []
    for flush in (False, True):
        repkernels.manual_seed(3)
        torch.set_flush_denormal(flush)
        try:
            drawn = init.trunc_normal_(torch.empty(40), 0.0, 1e-39, -1e-39, 1e-39)
            results.append([drawn, init.orthogonal_(torch.empty(4, 3), 1e-39)])
        finally:
            torch.set_flush_denormal(False)
    for found, wanted in zip(*results, strict=True):
        assert_same_bits(found, wanted)


def test_any_layout_and_generator():
    one, other = random.Generator(7), random.Generator(7)
    x, y = torch.zeros(6, 10), torch.empty(3, 4)
    init.normal_(x[::2, 1:5], generator=one)
    init.normal_(y, generator=other)
    assert_same_bits(x[::2, 1:5], y)
    assert not x[1::2].any()
    p = torch.nn.Parameter(torch.empty(3, 4))
    assert init.uniform_(p, generator=one).requires_grad


def test_the_meta_device_takes_as_many_streams():
    fills = (
        init.uniform_, init.normal_, init.xavier_normal_, init.kaiming_uniform_, init.trunc_normal_, init.orthogonal_,
        lambda x: init.sparse_(x, 0.5),
    )  # fmt: skip
    states = []
    for device in ("cpu", "meta"):
        repkernels.manual_seed(1)
        for fill in fills:
            fill(torch.empty(3, 4, device=device))
        states.append(random.get_state())
    assert states[0] == states[1]
    assert states[0]["stream"] == 8


def test_torchs_arguments():
    for key in init.__all__:
        ours, theirs = (list(inspect.signature(getattr(m, key)).parameters.values()) for m in (init, torch.nn.init))
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs], key


@pytest.mark.parametrize("nonlinearity", ["linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
def test_gains_are_torchs(nonlinearity):
    for param in (None, 0.3, 2) if nonlinearity == "leaky_relu" else (None,):
        ours = init.calculate_gain(nonlinearity, param)
        assert math.isclose(ours, torch.nn.init.calculate_gain(nonlinearity, param), rel_tol=1e-15)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: init.trunc_normal_(torch.empty(3), 0, 1, 2, 1), ValueError, "^a, b and std"),
        (lambda: init.trunc_normal_(torch.empty(3), 0, -1), ValueError, "^a, b and std"),
        (lambda: init.trunc_normal_(torch.empty(3), 0, 1, 3, 4), NotImplementedError, "^a and b"),
        (lambda: init.orthogonal_(torch.empty(3)), ValueError, "^tensor"),
        (lambda: init.sparse_(torch.empty(3), 0.5), ValueError, "^tensor"),
        (lambda: init.sparse_(torch.empty(3, 3), 1.5), ValueError, "^sparsity"),
        (lambda: init.xavier_normal_(torch.empty(3)), ValueError, "Fan in"),
        (lambda: init.kaiming_normal_(torch.empty(3, 3), mode="fan"), ValueError, "fan_in"),
        (lambda: init.calculate_gain("gelu"), ValueError, "gelu"),
        (lambda: init.normal_(torch.empty(3, dtype=torch.int64)), NotImplementedError, "^dtype"),
        (lambda: init.normal_(torch.empty(3), generator=torch.Generator()), TypeError, "^generator"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
