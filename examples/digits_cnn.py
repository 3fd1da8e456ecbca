"""A CNN on scikit-learn's handwritten digits: `python -m examples.digits_cnn`."""

from dataclasses import dataclass

from torch import nn

from examples.command import command
from examples.data import digits
from examples.training import Options, Training
from repkernels.optim.lr_scheduler import CosineAnnealingLR


@dataclass(frozen=True)
class CNNOptions(Options):
    """Those of every run."""


def block(inputs: int, outputs: int) -> nn.Module:
    """Convolution, batch_norm, relu, and half of the size."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def build() -> nn.Module:
    """Images (N, 1, 8, 8) -> logits (N, 10)."""
    return nn.Sequential(
        block(1, 16), block(16, 32), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10)
    )  # fmt: skip


def training(options: CNNOptions) -> Training:
    """SGD with momentum, weight decay and a cosine."""
    return Training(
        options,
        data=lambda: digits(crop=1),
        build=build,
        optimizer=lambda optim, parameters, lr: optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=CosineAnnealingLR,
        blocks=lambda model: model[:2],
    )


if __name__ == "__main__":
    command(CNNOptions, training, "Trains a CNN on scikit-learn's handwritten digits.")()
