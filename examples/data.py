"""Data sets. What is random about a sample is a function of the seed, the epoch and the sample's index alone."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench import images
from repkernels import random
from repkernels.random import words


class Samples(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images as uint8 (N, C, H, W), labels, and how a pixel becomes a number: (pixel - offset) * scale, exactly.

    crop: zeros around an image before a piece of its size is cut out at random; flip: from left to right, at random.
    Whichever worker asks, sample i of epoch e is drawn from stream e * N + i of `seed`.
    """

    def __init__(
        self, pixels: np.ndarray, labels: np.ndarray, offset: int, scale: float, crop: int = 0, flip: bool = False
    ) -> None:
        self.pixels, self.labels, self.offset, self.scale = pixels, labels, offset, scale
        self.crop, self.flip = crop, flip
        self.seed = self.epoch = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.pixels[index]
        if self.crop or self.flip:
            image = self._augmented(image, words(self.seed, self.epoch * len(self) + index, 3))
        values = (image.astype(np.float32) - np.float32(self.offset)) * np.float32(self.scale)
        return torch.from_numpy(values), int(self.labels[index])

    def _augmented(self, image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        height, width = image.shape[1:]
        top, left = (int(word) % (2 * self.crop + 1) for word in drawn[:2])
        sides = (self.crop, self.crop)
        image = np.pad(image, ((0, 0), sides, sides))[:, top : top + height, left : left + width]
        return image[:, :, ::-1].copy() if self.flip and drawn[2] & 1 else image


def digits(size: int = 8, channels: int = 1, crop: int = 0) -> tuple[Samples, Samples]:
    """scikit-learn's 1797 handwritten digits, each pixel `size` / 8 times a side: 1437 for training, 360 for testing.

    Their order is the next draw of the process's generator.
    """
    found = images.digits(size, channels)
    order = random.permutation(len(found.labels)).numpy()
    train, test = found.some(order[:-360]), found.some(order[-360:])
    return Samples(*train, 0, 1 / 16, crop), Samples(*test, 0, 1 / 16)


def synthetic(size: int, count: int, classes: int) -> tuple[Samples, Samples]:
    """Random images of 3 channels with random labels, for measuring and comparing."""
    pixels = random.randint(0, 256, (count, 3, size, size), dtype=torch.uint8).numpy()
    labels = random.randint(0, classes, (count,)).numpy()
    return Samples(pixels, labels, 128, 1 / 64, crop=size // 8, flip=True), Samples(
        pixels[:64], labels[:64], 128, 1 / 64
    )


def cifar10(folder: Path) -> tuple[Samples, Samples]:
    """A local copy of CIFAR-10's Python version: the folder that holds data_batch_1 to 5 and test_batch."""
    train, test = images.cifar10(folder)
    return Samples(*train, 128, 1 / 64, crop=4, flip=True), Samples(*test, 128, 1 / 64)


class Text(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Pieces of `length` bytes of a file, each one byte after the one before, and the bytes that follow."""

    def __init__(self, file: Path, length: int) -> None:
        self.bytes = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8).long()
        self.length, self.seed, self.epoch = length, 0, 0
        if len(self.bytes) <= length:
            raise ValueError(f"text: {file} has {len(self.bytes)} bytes, a piece takes {length + 1}")

    def __len__(self) -> int:
        return len(self.bytes) - self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.bytes[index : index + self.length], self.bytes[index + 1 : index + 1 + self.length]
