"""reference/cnn.py: the demo's convolutional network and its gradients. tests/test_demo.py compares the whole run."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from reference import cnn
from repkernels.verify import catalogue


def test_initial_digest_is_the_recorded_one():
    assert cnn.state(cnn.initial(cnn.SEED, 1)) == catalogue.demo("cnn")["initial"]


def test_gradients_are_near_those_of_binary64():
    pytest.importorskip("sklearn")
    pixels, labels = cnn.data()
    x, target = pixels[:16].reshape(16, 1, 8, 8), labels[:16]
    layers = cnn.initial(cnn.SEED, 1)
    parameters = [torch.from_numpy(p).double().requires_grad_() for layer in layers for p in layer]
    hidden = torch.from_numpy(x).double()
    for index in (0, 2):
        hidden = F.max_pool2d(F.conv2d(hidden, *parameters[index : index + 2], padding=1).relu(), 2)
    F.cross_entropy(F.linear(hidden.flatten(1), *parameters[4:]), torch.from_numpy(target)).backward()
    found = [g for layer in cnn.backward(layers, x, target) for g in layer]
    for grad, parameter in zip(found, parameters, strict=True):
        np.testing.assert_allclose(grad, parameter.grad.numpy(), rtol=1e-4, atol=1e-6)
