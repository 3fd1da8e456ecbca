"""A training run under one seed: the same bits on every machine, and after every stop and resumption."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typer import Option

import repkernels
from repkernels import random
from repkernels.devices import named_device
from repkernels.random import RandomSampler

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Options:
    """What every run can be told. None of it but `seed`, `steps`, `batch`, `accumulate`, `lr`, `amp` and `contract` may
    change a bit."""

    steps: Annotated[int, Option(min=1, help="Steps of the optimizer.")] = 200
    batch: Annotated[int, Option(min=1, help="Samples of a step.")] = 64
    lr: Annotated[float, Option(help="The largest learning rate.")] = 0.05
    seed: Annotated[int, Option(min=0, help="Of everything that is drawn.")] = 0
    device: Annotated[str, Option(help="cpu, cuda or cuda:N; a GPU if there is one.")] = ""
    way: Annotated[str, Option(help="convert the model, or run it inside of reproducible().")] = "convert"
    contract: Annotated[str, Option(help="Of all contractions; the defaults if left out.")] = ""
    amp: Annotated[str, Option(help="Autocast to bf16, or to fp16 with a GradScaler; no.")] = "no"
    accumulate: Annotated[int, Option(min=1, help="Parts of a batch whose gradients are added.")] = 1
    recompute: Annotated[bool, Option(help="Activation checkpoints around the model's blocks.")] = False
    workers: Annotated[int, Option(min=0, help="Processes that load data.")] = 0
    checkpoint: Annotated[Path | None, Option(metavar="FILE", help="Where the run's state is kept at its end.")] = None
    resume: Annotated[bool, Option(help="Go on from --checkpoint.")] = False
    stop_after: Annotated[int, Option(metavar="STEP", help="Stop here, as if interrupted; with --checkpoint.")] = 0
    json: Annotated[Path | None, Option(metavar="FILE", help="Write digests and losses here.")] = None

    def __post_init__(self) -> None:
        if self.way not in ("convert", "reproducible"):
            raise ValueError(f"way: expected convert or reproducible, got {self.way!r}")
        if self.amp not in ("no", *HALF):
            raise ValueError(f"amp: expected no, bf16 or fp16, got {self.amp!r}")
        if self.batch % self.accumulate:
            raise ValueError(f"accumulate: a batch of {self.batch} has no {self.accumulate} equal parts")
        if (self.resume or self.stop_after) and self.checkpoint is None:
            raise ValueError("checkpoint: --resume and --stop-after need a file")


class Training:
    """A model, its data, optimizer, schedule, loss scale and random numbers.

    options: see `Options`. data: (training set, test set), or a function that draws them. build: makes the model.
    optimizer: of a library (torch.optim or repkernels.optim), the parameters and the learning rate. schedule: of an
    optimizer and the number of steps. blocks: the modules of a model that --recompute puts into activation checkpoints.
    clip: the largest norm of the gradients.
    """

    def __init__(
        self,
        options: Options,
        data: Callable[[], tuple[Any, Any]],
        build: Callable[[], nn.Module],
        optimizer: Callable[[Any, Any, float], torch.optim.Optimizer],
        schedule: Callable[[torch.optim.Optimizer, int], Any],
        blocks: Callable[[Any], Iterable[nn.Module]] = lambda model: (),
        clip: float | None = None,
    ) -> None:
        self.options, self.clip = options, clip
        self.device = named_device(options.device)
        self.contract = options.contract or None
        random.manual_seed(options.seed)
        self.train_set, self.test_set = data()
        if len(self.train_set) < options.batch:
            raise ValueError(f"batch: {options.batch} samples, the training set has {len(self.train_set)}")
        self.sampler = RandomSampler(self.train_set)
        self.train_set.seed = int(random.words(*random.next_stream(), 1)[0])
        # Plain torch code draws the initial values from this library's generator in here.
        with repkernels.reproducible():
            model = build()
        loss_of = nn.CrossEntropyLoss()
        if options.way == "convert":
            repkernels.convert(model, self.contract)
            repkernels.convert(loss_of)
        if options.recompute:
            recompute(blocks(model))
        self.initial = repkernels.digest(model)
        self.model, self.loss_of = model.to(self.device), loss_of
        library = repkernels.optim if options.way == "convert" else torch.optim
        self.optimizer = optimizer(library, self.model.parameters(), options.lr)
        self.scheduler = schedule(self.optimizer, options.steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.amp == "fp16")
        self.done = self.epoch = self.used = 0
        self.losses: list[float] = []

    def run(self, until: int, report: Callable[[int, float], None] = lambda step, loss: None) -> None:
        """Makes steps up to number `until`; `report` gets each one's number and loss."""
        self.model.train()
        while self.done < until:
            self.train_set.epoch = self.epoch
            self.sampler.load_state_dict({"seed": self.sampler.seed, "epoch": self.epoch, "position": self.used})
            for x, y in self._loader():
                loss = self._step(x.to(self.device), y.to(self.device))
                self.done, self.used = self.done + 1, self.used + len(y)
                self.losses.append(loss)
                report(self.done, loss)
                if self.done == until:
                    break
            if self.used + self.options.batch > len(self.train_set):
                self.epoch, self.used = self.epoch + 1, 0

    def test(self) -> tuple[float | None, str]:
        """The share of test samples whose class is found, and the digest of all logits."""
        if self.test_set is None:
            return None, ""
        self.model.eval()
        logits, labels = [], []
        # Loaders draw a seed for their workers, which is this library's inside of reproducible(): they stay outside.
        for x, y in torch.utils.data.DataLoader(self.test_set, 128):
            with torch.no_grad(), self._way():
                logits.append(self.model(x.to(self.device)).cpu())
            labels.append(y)
        found, wanted = torch.cat(logits), torch.cat(labels)
        return (found.argmax(1) == wanted).double().mean().item(), repkernels.digest(found)

    def save(self, file: Path) -> None:
        """Keeps all that the next step depends on."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random.get_state(),
            "data": {"seed": self.train_set.seed, "sampler": self.sampler.seed, "epoch": self.epoch, "used": self.used},
            "done": self.done,
            "losses": self.losses,
        }
        torch.save(state, file)

    def load(self, file: Path) -> None:
        """Goes on where `save` was called, with the next step's bits."""
        state = torch.load(file, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        random.set_state(state["random"])
        data = state["data"]
        self.train_set.seed, self.sampler.seed = data["seed"], data["sampler"]
        self.epoch, self.used, self.done, self.losses = data["epoch"], data["used"], state["done"], state["losses"]

    def _loader(self) -> Any:
        return torch.utils.data.DataLoader(
            self.train_set,
            self.options.batch,
            sampler=self.sampler,
            num_workers=self.options.workers,
            drop_last=True,
        )

    def _step(self, x: Tensor, y: Tensor) -> float:
        count, total = self.options.accumulate, 0.0
        with self._way():
            self.optimizer.zero_grad()
            for part, target in zip(x.chunk(count), y.chunk(count), strict=True):
                with torch.autocast(self.device.type, HALF.get(self.options.amp), enabled=self.options.amp != "no"):
                    logits = self.model(part)
                    loss = self.loss_of(logits.flatten(0, -2), target.flatten())
                self.scaler.scale(loss * (1 / count)).backward()
                total += loss.item() / count
            if self.clip is not None:
                self.scaler.unscale_(self.optimizer)
                repkernels.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.scaler.get_scale() >= scale:  # a step with infinite gradients was left out
                self.scheduler.step()
        return total

    def _way(self) -> contextlib.AbstractContextManager[Any]:
        if self.options.way == "reproducible":
            return repkernels.reproducible(self.contract)
        return contextlib.nullcontext()


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Puts each block into an activation checkpoint: its forward runs again in backward, with the same bits."""
    for block in blocks:
        block.forward = functools.partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=repkernels.checkpoint_contexts,
        )


def trained(training: Training, report: Callable[[int, float], None] = lambda step, loss: None) -> dict[str, Any]:
    """Runs as its options say, and returns digests and losses as plain values."""
    options = training.options
    if options.resume:
        assert options.checkpoint is not None
        training.load(options.checkpoint)
    begin = time.perf_counter()
    training.run(min(options.stop_after or options.steps, options.steps), report)
    seconds = time.perf_counter() - begin
    if options.checkpoint is not None:
        training.save(options.checkpoint)
    accuracy, logits = training.test()
    digests = {"initial": training.initial, "trained": repkernels.digest(training.model), "logits": logits}
    return {
        "step": training.done,
        "digests": {name: value for name, value in digests.items() if value},
        "accuracy": accuracy,
        "losses": training.losses,
        "seconds": round(seconds, 2),
    }
