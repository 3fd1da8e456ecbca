"""reference/mlp.py: the demo's model, its gradients and its first steps."""

import numpy as np
import pytest
import torch

from reference import mlp
from repkernels import nn, optim
from repkernels.verify import catalogue
from tests.support import DEVICES, assert_same_bits


@pytest.fixture
def layers():
    pairs = zip(mlp.SIZES, mlp.SIZES[1:], strict=False)
    return [mlp.linear_init(fan_in, fan_out, mlp.SEED, 1 + 2 * i) for i, (fan_in, fan_out) in enumerate(pairs)]


@pytest.fixture(scope="module")
def batch():
    pytest.importorskip("sklearn")
    pixels, labels = mlp.data()
    return pixels[:64], labels[:64]


def test_initial_digest_is_the_recorded_one(layers):
    assert mlp.state(layers) == catalogue.demo("mlp")["initial"]


def test_gradients_are_near_those_of_binary64(layers, batch):
    x, target = batch
    parameters = [torch.from_numpy(p).double().requires_grad_() for layer in layers for p in layer]
    hidden = torch.from_numpy(x).double()
    for index in range(0, len(parameters), 2):
        hidden = torch.nn.functional.linear(hidden.relu() if index else hidden, *parameters[index : index + 2])
    torch.nn.functional.cross_entropy(hidden, torch.from_numpy(target)).backward()
    found = [g for layer in mlp.backward(layers, mlp.forward(layers, x), target) for g in layer]
    for grad, parameter in zip(found, parameters, strict=True):
        np.testing.assert_allclose(grad, parameter.grad.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_first_steps_have_the_same_bits(layers, batch, device):
    x, target = batch
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    linears = (model[0], model[2], model[4])
    with torch.no_grad():
        for linear, (weight, bias) in zip(linears, layers, strict=True):
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
    model.to(device)
    optimizer = optim.SGD(model.parameters(), lr=mlp.LEARNING_RATE, momentum=mlp.MOMENTUM)
    momenta = [(None, None) for _ in layers]
    for rows in (slice(0, 32), slice(32, 64), slice(5, 34)):
        optimizer.zero_grad()
        pixels, labels = torch.from_numpy(x[rows]).to(device), torch.from_numpy(target[rows]).to(device)
        nn.CrossEntropyLoss()(model(pixels), labels).backward()
        optimizer.step()
        layers, momenta = mlp.trained(layers, momenta, x[rows], target[rows])
        for linear, (weight, bias) in zip(linears, layers, strict=True):
            assert_same_bits(linear.weight.detach().cpu(), torch.from_numpy(weight))
            assert_same_bits(linear.bias.detach().cpu(), torch.from_numpy(bias))
