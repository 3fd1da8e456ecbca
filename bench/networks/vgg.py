"""VGG-19 (Simonyan and Zisserman, 2014), without batch_norm."""

from torch import nn

# Channels of the convolutions between two poolings.
STAGES = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


def vgg19(classes: int, side: int) -> nn.Module:
    """Images (N, 3, side, side), side a multiple of 32 -> logits (N, classes)."""
    layers: list[nn.Module] = []
    inputs = 3
    for stage in STAGES:
        for outputs in stage:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    head = (
        nn.Flatten(),
        nn.Linear(inputs * (side // 32) ** 2, 4096), nn.ReLU(True), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(),
        nn.Linear(4096, classes),
    )  # fmt: skip
    return nn.Sequential(*layers, *head)
