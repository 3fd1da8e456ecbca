"""Images for training: scikit-learn's digits, and CIFAR-10 from a local copy."""

import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Images(NamedTuple):
    """pixels: uint8 (N, C, H, W). labels: int64 (N,)."""

    pixels: np.ndarray
    labels: np.ndarray

    def some(self, indices: np.ndarray) -> "Images":
        """These, in this order."""
        return Images(self.pixels[indices], self.labels[indices])


def digits(size: int = 8, channels: int = 1) -> Images:
    """1797 handwritten digits, pixels 0 to 16, each of them `size` / 8 times a side.

    Raises ValueError for another size, ModuleNotFoundError without scikit-learn.
    """
    if size % 8:
        raise ValueError(f"size: expected a multiple of 8, got {size}")
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("digits need scikit-learn: pip install 'repkernels[demo]'") from error
    found = load_digits()
    pixels = found.images.astype(np.uint8)[:, None].repeat(channels, 1).repeat(size // 8, 2).repeat(size // 8, 3)
    return Images(pixels, found.target.astype(np.int64))


def cifar10(folder: Path) -> tuple[Images, Images]:
    """Training and test images of CIFAR-10's Python version: a folder with data_batch_1 to 5 and test_batch."""

    def read(names: list[str]) -> Images:
        parts = [pickle.loads((folder / name).read_bytes(), encoding="bytes") for name in names]
        pixels = np.concatenate([np.asarray(part[b"data"], np.uint8) for part in parts]).reshape(-1, 3, 32, 32)
        return Images(pixels, np.concatenate([np.asarray(part[b"labels"], np.int64) for part in parts]))

    return read([f"data_batch_{i}" for i in range(1, 6)]), read(["test_batch"])
