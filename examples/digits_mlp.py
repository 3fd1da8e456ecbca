"""An MLP on scikit-learn's handwritten digits: `python -m examples.digits_mlp`."""

from dataclasses import dataclass
from typing import Annotated

from torch import nn
from typer import Option

from examples.command import command
from examples.data import digits
from examples.training import Options, Training
from repkernels.optim.lr_scheduler import OneCycleLR


@dataclass(frozen=True)
class MLPOptions(Options):
    """Those of every run."""

    lr: Annotated[float, Option(help="The largest learning rate.")] = 0.2


def build() -> nn.Module:
    """64-128-64-10, with dropout."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 10),
    )  # fmt: skip


def training(options: MLPOptions) -> Training:
    """SGD with momentum and one cycle of the learning rate."""
    return Training(
        options,
        data=digits,
        build=build,
        optimizer=lambda optim, parameters, lr: optim.SGD(parameters, lr=lr, momentum=0.9),
        schedule=lambda optimizer, steps: OneCycleLR(optimizer, options.lr, total_steps=steps + 1),
    )


if __name__ == "__main__":
    command(MLPOptions, training, "Trains an MLP on scikit-learn's handwritten digits.")()
