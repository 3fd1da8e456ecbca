"""What remains random about training when the seed is fixed: the same ResNet trained again and again.

After "Randomness In Neural Network Training: Characterizing the Impact of Tooling" (Zhuang et al., 2021) and "Problems
and Opportunities in Training Deep Learning Software Systems: An Analysis of Variance" (Pham et al., 2020).
"""

import time
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import repkernels
from repkernels import random

from .images import Images, cifar10, digits
from .network_steps import pair, prepare
from .networks.resnet import ResNet

OURS = "repkernels"
CLASSES = 10
TEST = 360  # of the digits


class Setting(NamedTuple):
    """What is trained, and for how long. data: a folder with CIFAR-10, or "" for digits of `size` pixels a side.
    contract: of the way OURS, or "" for the defaults. images: of each of the two sets at most, 0 for all."""

    depth: int
    width: int
    size: int
    batch: int
    epochs: int
    lr: float
    data: str
    contract: str
    images: int


class Run(NamedTuple):
    """One trained model: its predictions on the test set, the mean loss there, weights and digest, seconds."""

    seed: int
    predictions: np.ndarray
    loss: float
    weights: np.ndarray
    digest: str
    seconds: float


def data(setting: Setting) -> tuple[Images, Images]:
    """Training and test set, the same for all runs."""
    if setting.data:
        train, test = cifar10(Path(setting.data))
    else:
        every = digits(setting.size, 3)
        order = random.permutation(len(every.labels), generator=random.Generator(0)).numpy()
        train, test = every.some(order[:-TEST]), every.some(order[-TEST:])
    if setting.images:
        train, test = (s.some(np.arange(min(setting.images, len(s.labels)))) for s in (train, test))
    return train, test


def runs(way: str, seeds: list[int], setting: Setting, device: torch.device) -> list[Run]:
    """A run for each of the seeds. Initial weights, the order of images and the learning rates depend on the seed
    alone, and not on the way."""
    prepare(way)
    offset, scale = (128, 1 / 64) if setting.data else (0, 1 / 16)
    (x, y), (test_x, test_y) = (
        ((torch.from_numpy(s.pixels).to(device).float() - offset) * scale, torch.from_numpy(s.labels).to(device))
        for s in data(setting)
    )
    return [_run(way, seed, setting, x, y, test_x, test_y) for seed in seeds]


def _run(way: str, seed: int, setting: Setting, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> Run:
    random.manual_seed(seed)
    with repkernels.reproducible():
        model: torch.nn.Module = ResNet(setting.depth, CLASSES, width=setting.width, small=True)
    library: Any = torch.optim
    loss_of = torch.nn.CrossEntropyLoss()
    if way == OURS:
        repkernels.convert(model, pair(setting.contract) if setting.contract else None)
        library, loss_of = repkernels.optim, repkernels.nn.CrossEntropyLoss()
    model.to(x.device)
    optimizer = library.SGD(model.parameters(), lr=setting.lr, momentum=0.9, weight_decay=5e-4)
    steps = len(x) // setting.batch
    schedule = repkernels.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * setting.epochs)
    begin = time.perf_counter()
    for _ in range(setting.epochs):
        order = random.permutation(len(x)).to(x.device)
        for rows in order[: steps * setting.batch].split(setting.batch):
            optimizer.zero_grad()
            loss_of(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in test_x.split(512)]).double().cpu()
    seconds = time.perf_counter() - begin
    loss = torch.nn.functional.cross_entropy(logits, test_y.cpu()).item()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu().numpy()
    return Run(seed, logits.argmax(1).numpy(), loss, weights, repkernels.digest(model), seconds)


def summary(found: list[Run], labels: np.ndarray) -> dict[str, Any]:
    """What differs between runs. Standard deviations divide by n - 1; the loss's is of the mean over the test set.

    churn: the share of test images whose prediction differs between two runs, mean over all pairs. distance: the L2
    norm of the difference of two weight vectors, and of these scaled to length 1.
    """
    right = np.array([run.predictions == labels for run in found])
    accuracy = right.mean(axis=1)
    per_class = np.array([[r[labels == c].mean() for c in range(CLASSES)] for r in right])
    pairs = list(combinations(found, 2))
    return {
        "runs": len(found),
        "digests": len({run.digest for run in found}),
        "accuracy": float(accuracy.mean()),
        "accuracy_deviation": _deviation(accuracy),
        "loss": float(np.mean([run.loss for run in found])),
        "loss_deviation": _deviation([run.loss for run in found]),
        "churn": _mean([(a.predictions != b.predictions).mean() for a, b in pairs]),
        "distance": _mean([np.linalg.norm(a.weights.astype(float) - b.weights) for a, b in pairs]),
        "distance_of_unit_vectors": _mean([np.linalg.norm(_unit(a) - _unit(b)) for a, b in pairs]),
        "class_deviation": [_deviation(column) for column in per_class.T],
        "seconds": float(np.median([run.seconds for run in found])),
    }


def share(fixed: dict[str, Any], seeds: dict[str, Any]) -> dict[str, float | None]:
    """Of what differs between seeds, how much there is between runs of one seed."""
    names = ("accuracy_deviation", "loss_deviation", "churn", "distance_of_unit_vectors")
    found: dict[str, float | None] = {name: _over(fixed[name], seeds[name]) for name in names}
    return found | {"class_deviation": _over(_mean(fixed["class_deviation"]), _mean(seeds["class_deviation"]))}


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _deviation(values: Any) -> float:
    # From the first value, so that equal ones deviate by 0, not by the rounding of their mean.
    return float(np.std(np.subtract(values, values[0]), ddof=1)) if len(values) > 1 else 0.0


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _unit(run: Run) -> np.ndarray:
    weights = run.weights.astype(float)
    return weights / np.linalg.norm(weights)
