"""The demo's training run, computed independently: `python -m reference.mlp` prints its digests.

An MLP 64-128-64-10 on scikit-learn's handwritten digits, SPEC.md, "The demo".
"""

import math

import numpy as np

from reference import cross_entropy, digest, philox, relu, sgd
from reference import matmul as mm

SEED = 0
SIZES = (64, 128, 64, 10)
TEST, BATCH, EPOCHS = 360, 64, 20
LEARNING_RATE, MOMENTUM = 0.05, 0.9
FORWARD, GRADIENT = "fixed24", "fixed32"
DTYPE = "float32"

Layer = tuple[np.ndarray, np.ndarray]
Momentum = tuple[np.ndarray | None, np.ndarray | None]


def linear_init(fan_in: int, fan_out: int, seed: int, stream: int) -> Layer:
    """Weight (out, in) from `stream` and bias (out,) from the next one: U(-bound, bound) with bound = 1 / sqrt(in)."""
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    weight = philox.uniform(seed, stream, fan_out * fan_in, -bound, bound).reshape(fan_out, fan_in)
    return weight, philox.uniform(seed, stream + 1, fan_out, -bound, bound)


def forward(layers: list[Layer], x: np.ndarray) -> list[np.ndarray]:
    """The input of every layer, then the logits."""
    values = [x]
    for index, (weight, bias) in enumerate(layers):
        x = mm.linear(x, weight, bias, DTYPE, FORWARD)
        if index + 1 < len(layers):
            x = relu.forward(x)
        values.append(x)
    return values


def backward(layers: list[Layer], values: list[np.ndarray], target: np.ndarray) -> list[Layer]:
    """The gradients of every layer's weight and bias for the mean cross-entropy."""
    grad = cross_entropy.backward(np.float32(1), values[-1], target, DTYPE)
    grads: list[Layer] = []
    for index in reversed(range(len(layers))):
        weight, inputs = layers[index][0], values[index]
        grads.append((mm.matmul(grad.T, inputs, DTYPE, GRADIENT), mm.bias_gradient(grad, DTYPE)))
        if index:
            # An input above 0 is one that relu let through.
            grad = relu.backward(mm.matmul(grad, weight, DTYPE, GRADIENT), inputs)
    return grads[::-1]


def trained(
    layers: list[Layer], momenta: list[Momentum], x: np.ndarray, target: np.ndarray
) -> tuple[list[Layer], list[Momentum]]:
    """Parameters and momenta after one step on one batch."""
    new_layers, new_momenta = [], []
    for layer, grad, momentum in zip(layers, backward(layers, forward(layers, x), target), momenta, strict=True):
        weight, weight_momentum = sgd.step(layer[0], grad[0], momentum[0], DTYPE, LEARNING_RATE, MOMENTUM)
        bias, bias_momentum = sgd.step(layer[1], grad[1], momentum[1], DTYPE, LEARNING_RATE, MOMENTUM)
        new_layers.append((weight, bias))
        new_momenta.append((weight_momentum, bias_momentum))
    return new_layers, new_momenta


def data() -> tuple[np.ndarray, np.ndarray]:
    """Pixels / 16 (1797, 64) in fp32 and labels (1797,)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)


def state(layers: list[Layer]) -> str:
    """The digest of the model's state_dict; its linear layers are modules 0, 2 and 4 of a Sequential."""
    items = {}
    for index, (weight, bias) in enumerate(layers):
        items[f"{2 * index}.weight"] = digest.tensor(weight, DTYPE)
        items[f"{2 * index}.bias"] = digest.tensor(bias, DTYPE)
    return digest.mapping(items)


def run() -> tuple[dict[str, str], float]:
    """The digests of the initial model, the trained model and the test logits, and the test accuracy."""
    pixels, labels = data()
    stream = 0
    order = philox.permutation(SEED, stream, len(pixels))
    train, test = order[:-TEST], order[-TEST:]
    layers = []
    for fan_in, fan_out in zip(SIZES, SIZES[1:], strict=False):
        layers.append(linear_init(fan_in, fan_out, SEED, stream + 1))
        stream += 2
    digests = {"initial": state(layers)}
    momenta: list[Momentum] = [(None, None) for _ in layers]
    for _ in range(EPOCHS):
        stream += 1
        shuffled = train[philox.permutation(SEED, stream, len(train))]
        for start in range(0, len(shuffled), BATCH):
            rows = shuffled[start : start + BATCH]
            layers, momenta = trained(layers, momenta, pixels[rows], labels[rows])
    logits = forward(layers, pixels[test])[-1]
    digests["trained"] = state(layers)
    digests["logits"] = digest.tensor(logits, DTYPE)
    return digests, float((logits.argmax(axis=1) == labels[test]).mean())


def digests() -> dict[str, str]:
    """The three digests of the demo."""
    return run()[0]


if __name__ == "__main__":
    found, accuracy = run()
    for name, value in found.items():
        print(f"{name:8} {value}")
    print(f"test accuracy {accuracy:.4f}")
