"""MobileNetV2 (Sandler et al., 2018) and EfficientNet-B0 (Tan and Le, 2019): inverted bottlenecks of depthwise
convolutions. Without stochastic depth, which takes whole samples out at random."""

from collections.abc import Callable

from torch import Tensor, nn

Activation = Callable[[], nn.Module]

# (expansion, channels, blocks, first stride, kernel) of each stage.
MOBILENET_V2 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)  # fmt: skip
EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip


class Gate(nn.Module):
    """Each channel times a number in (0, 1) that depends on the means of all channels."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.SiLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Block(nn.Module):
    """1x1 to `expansion` times the channels, depthwise, gate, 1x1; added to its input where the shapes are equal."""

    def __init__(
        self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int, activation: Activation, gated: bool
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        layers = convolution(inputs, inner, 1, activation=activation) if expansion > 1 else []
        layers += convolution(inner, inner, kernel, stride, inner, activation)
        if gated:
            layers.append(Gate(inner, max(1, inputs // 4)))
        self.body = nn.Sequential(*layers, *convolution(inner, outputs, 1))
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, activation: Activation | None = None
) -> list[nn.Module]:
    """Convolution without bias, batch_norm, activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([activation()] if activation else [])]


def _network(
    stages: tuple[tuple[int, int, int, int, int], ...],
    activation: Activation,
    gated: bool,
    dropout: float,
    classes: int,
) -> nn.Module:
    layers = convolution(3, 32, 3, 2, activation=activation)
    inputs = 32
    for expansion, outputs, count, first, kernel in stages:
        for i in range(count):
            layers.append(Block(inputs, outputs, expansion, 1 if i else first, kernel, activation, gated))
            inputs = outputs
    layers += convolution(inputs, 1280, 1, activation=activation)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(1280, classes))


def mobilenet_v2(classes: int) -> nn.Module:
    """Images (N, 3, H, W) -> logits (N, classes)."""
    return _network(MOBILENET_V2, lambda: nn.ReLU6(True), False, 0.2, classes)


def efficientnet_b0(classes: int) -> nn.Module:
    """Images (N, 3, H, W) -> logits (N, classes)."""
    return _network(EFFICIENTNET_B0, nn.SiLU, True, 0.2, classes)
