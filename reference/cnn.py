"""The demo's convolutional network, computed independently: `python -m reference.cnn` prints its digests.

Two 3x3 convolutions, each with relu and max_pool, and a linear layer on scikit-learn's handwritten digits, SPEC.md,
"The demo".
"""

import math

import numpy as np

from reference import conv, cross_entropy, digest, philox, pooling, relu, sgd
from reference import matmul as mm
from reference.mlp import DTYPE, FORWARD, GRADIENT, MOMENTUM, SEED, TEST, Layer, Momentum, data, linear_init

CHANNELS = (1, 8, 16)
SIDE, CLASSES = 8, 10
BATCH, EPOCHS = 64, 3
LEARNING_RATE = 0.1
HALVES = pooling.Windows(kernel=(1, 2, 2), stride=(1, 2, 2))


def initial(seed: int, stream: int) -> list[Layer]:
    """The convolutions and the linear layer, weights and biases from `stream` on."""
    layers = []
    for inputs, outputs in zip(CHANNELS, CHANNELS[1:], strict=False):
        weight, bias = linear_init(inputs * 9, outputs, seed, stream)
        layers.append((weight.reshape(outputs, inputs, 3, 3), bias))
        stream += 2
    return [*layers, linear_init(CHANNELS[-1] * (SIDE // 4) ** 2, CLASSES, seed, stream)]


def geometry(x: np.ndarray) -> conv.Geometry:
    """Of a convolution of x (N, C, H, W) that keeps its size."""
    return conv.geometry(x.shape[2:], (3, 3), padding=1)


def forward(layers: list[Layer], x: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """The inputs of the layers, what relu gave after each convolution, and the logits."""
    inputs, activated = [], []
    for weight, bias in layers[:-1]:
        inputs.append(x)
        activated.append(relu.forward(conv.forward(x, weight, bias, geometry(x), DTYPE, FORWARD)))
        x = pooling.max_pool(activated[-1][:, :, None], HALVES)[0][:, :, 0]
    inputs.append(x.reshape(len(x), math.prod(x.shape[1:])))
    return inputs, activated, mm.linear(inputs[-1], *layers[-1], DTYPE, FORWARD)


def backward(layers: list[Layer], x: np.ndarray, target: np.ndarray) -> list[Layer]:
    """The gradients of every layer's weight and bias for the mean cross-entropy."""
    inputs, activated, logits = forward(layers, x)
    grad = cross_entropy.backward(np.float32(1), logits, target, DTYPE)
    grads = [(mm.matmul(grad.T, inputs[-1], DTYPE, GRADIENT), mm.bias_gradient(grad, DTYPE))]
    grad = mm.matmul(grad, layers[-1][0], DTYPE, GRADIENT)
    for index in reversed(range(len(activated))):
        y = activated[index]
        grad = grad.reshape(*y.shape[:2], 1, y.shape[2] // 2, y.shape[3] // 2)
        grad = pooling.max_pool_gradient(grad, y[:, :, None], HALVES, DTYPE)[:, :, 0]
        # What relu gave is above 0 where its input is.
        grad = relu.backward(grad, y)
        g = geometry(inputs[index])
        grads.append((conv.weight_gradient(grad, inputs[index], g, DTYPE, GRADIENT), conv.bias_gradient(grad, DTYPE)))
        if index:
            grad = conv.input_gradient(grad, layers[index][0], None, g, DTYPE, GRADIENT)
    return grads[::-1]


def trained(
    layers: list[Layer], momenta: list[Momentum], x: np.ndarray, target: np.ndarray
) -> tuple[list[Layer], list[Momentum]]:
    """Parameters and momenta after one step on one batch."""
    new_layers, new_momenta = [], []
    for layer, grad, momentum in zip(layers, backward(layers, x, target), momenta, strict=True):
        pairs = [
            sgd.step(p, g, v, DTYPE, LEARNING_RATE, MOMENTUM) for p, g, v in zip(layer, grad, momentum, strict=True)
        ]
        new_layers.append((pairs[0][0], pairs[1][0]))
        new_momenta.append((pairs[0][1], pairs[1][1]))
    return new_layers, new_momenta


def state(layers: list[Layer]) -> str:
    """The digest of the model's state_dict; layers with parameters are modules 0, 3 and 7 of a Sequential."""
    items = {}
    for index, (weight, bias) in zip((0, 3, 7), layers, strict=True):
        items[f"{index}.weight"] = digest.tensor(weight, DTYPE)
        items[f"{index}.bias"] = digest.tensor(bias, DTYPE)
    return digest.mapping(items)


def run() -> tuple[dict[str, str], float]:
    """The digests of the initial model, the trained model and the test logits, and the test accuracy."""
    pixels, labels = data()
    images = pixels.reshape(len(pixels), 1, SIDE, SIDE)
    order = philox.permutation(SEED, 0, len(images))
    train, test = order[:-TEST], order[-TEST:]
    layers = initial(SEED, 1)
    stream = 2 * len(layers)
    digests = {"initial": state(layers)}
    momenta: list[Momentum] = [(None, None) for _ in layers]
    for _ in range(EPOCHS):
        stream += 1
        shuffled = train[philox.permutation(SEED, stream, len(train))]
        for start in range(0, len(shuffled), BATCH):
            rows = shuffled[start : start + BATCH]
            layers, momenta = trained(layers, momenta, images[rows], labels[rows])
    logits = forward(layers, images[test])[-1]
    digests["trained"] = state(layers)
    digests["logits"] = digest.tensor(logits, DTYPE)
    return digests, float((logits.argmax(axis=1) == labels[test]).mean())


def digests() -> dict[str, str]:
    """The three digests."""
    return run()[0]


if __name__ == "__main__":
    found, accuracy = run()
    for name, value in found.items():
        print(f"{name:8} {value}")
    print(f"test accuracy {accuracy:.4f}")
