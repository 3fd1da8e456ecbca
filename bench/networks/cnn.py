"""Six convolutions of one kernel size, halved by pooling after each second one: the networks on which the cost of
deterministic training was first published (Zhuang et al., 2021)."""

from torch import nn

WIDTHS = (16, 16, 32, 32, 64, 64)


def six_layers(kernel: int, classes: int, side: int) -> nn.Module:
    """Images (N, 3, side, side) -> logits (N, classes)."""
    layers: list[nn.Module] = []
    inputs = 3
    for i, outputs in enumerate(WIDTHS):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs), nn.ReLU(True)]
        if i % 2:
            layers.append(nn.MaxPool2d(2))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
