"""DenseNet-121 (Huang et al., 2016): every layer of a block sees the results of all before it."""

import torch
from torch import Tensor, nn

GROWTH, DEPTHS = 32, (6, 12, 24, 16)


class Layer(nn.Module):
    """x (N, C, H, W) -> (N, C + GROWTH, H, W): x itself, then what a 1x1 and a 3x3 convolution make of it."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(True), nn.Conv2d(inputs, 4 * GROWTH, 1, bias=False),
            nn.BatchNorm2d(4 * GROWTH), nn.ReLU(True), nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121(classes: int) -> nn.Module:
    """Images (N, 3, H, W) -> logits (N, classes)."""
    channels = 2 * GROWTH
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    for i, depth in enumerate(DEPTHS):
        if i:
            half = channels // 2
            conv = nn.Conv2d(channels, half, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(True), conv, nn.AvgPool2d(2)]
            channels = half
        for _ in range(depth):
            layers.append(Layer(channels))
            channels += GROWTH
    head = (nn.BatchNorm2d(channels), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, *head, nn.Linear(channels, classes))
