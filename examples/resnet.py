"""A ResNet on images: `python -m examples.resnet --depth 50 --data FOLDER`. The network: bench/networks/resnet.py."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torch import nn
from typer import Option

from bench.networks.resnet import DEPTHS, ResNet
from examples.command import command
from examples.data import cifar10, digits, synthetic
from examples.training import Options, Training
from repkernels.optim.lr_scheduler import CosineAnnealingLR


@dataclass(frozen=True)
class ResNetOptions(Options):
    """And those of the network and its images."""

    depth: Annotated[int, Option(help=f"One of {', '.join(map(str, DEPTHS))}.")] = 18
    width: Annotated[int, Option(min=1, help="Channels of the first stage.")] = 64
    data: Annotated[str, Option(help="digits, synthetic, or a folder with CIFAR-10's Python version.")] = "digits"
    size: Annotated[int, Option(min=8, help="Pixels of a side; of CIFAR-10 32.")] = 32
    classes: Annotated[int, Option(min=1, help="Of synthetic images.")] = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth not in DEPTHS:
            raise ValueError(f"depth: expected one of {', '.join(map(str, DEPTHS))}, got {self.depth}")


def training(options: ResNetOptions) -> Training:
    """SGD with momentum, weight decay and a cosine."""

    def data() -> tuple[Any, Any]:
        if options.data == "digits":
            return digits(options.size, 3, crop=options.size // 8)
        if options.data == "synthetic":
            return synthetic(options.size, max(256, options.batch), options.classes)
        return cifar10(Path(options.data))

    def build() -> nn.Module:
        classes = options.classes if options.data == "synthetic" else 10
        return ResNet(options.depth, classes, width=options.width, small=options.size <= 64)

    return Training(
        options,
        data=data,
        build=build,
        optimizer=lambda optim, parameters, lr: optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4),
        schedule=CosineAnnealingLR,
        blocks=lambda model: model.blocks,
    )


if __name__ == "__main__":
    command(ResNetOptions, training, "Trains a ResNet on digits, synthetic images or CIFAR-10.")()
