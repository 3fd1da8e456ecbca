"""A small GPT that learns a text byte by byte: `python -m examples.gpt --text FILE`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typer import Option

from examples.command import command
from examples.data import Text
from examples.training import Options, Training
from repkernels.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

LICENSE = Path(__file__).parents[1] / "LICENSE"


@dataclass(frozen=True)
class GPTOptions(Options):
    """And those of the model and its text."""

    batch: Annotated[int, Option(min=1, help="Pieces of text of a step.")] = 16
    lr: Annotated[float, Option(help="The largest learning rate.")] = 1e-3
    layers: Annotated[int, Option(min=1)] = 4
    heads: Annotated[int, Option(min=1)] = 4
    width: Annotated[int, Option(min=1)] = 128
    context: Annotated[int, Option(min=1, help="Bytes of a piece.")] = 128
    dropout: Annotated[float, Option(min=0, max=1)] = 0.1
    text: Annotated[Path, Option(metavar="FILE", help="What it learns; the licence of this project.")] = LICENSE


class Block(nn.Module):
    """Attention to what came before, then an MLP, each on a layer_norm and added to its input."""

    def __init__(self, options: GPTOptions) -> None:
        super().__init__()
        width = options.width
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, options.heads, options.dropout, batch_first=True)
        self.between = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU())
        self.last = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(options.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.drop(self.last(self.mlp(self.between(x))))


class GPT(nn.Module):
    """Bytes (N, T) -> logits (N, T, 256); the output's weight is that of the embedding."""

    def __init__(self, options: GPTOptions) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, options.width)
        self.positions = nn.Embedding(options.context, options.width)
        self.drop = nn.Dropout(options.dropout)
        blocks = [Block(options) for _ in range(options.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight
        for block in blocks:
            # What is added to the stream, 2 * layers times.
            for weight in (block.attention.out_proj.weight, block.last.weight):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * options.layers))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        place = torch.arange(length, device=x.device)
        mask = place > place[:, None]
        # As many rows of positions as samples: their gradients are then summed by the embedding.
        h = self.drop(self.tokens(x) + self.positions(place.expand_as(x)))
        for block in self.blocks:
            h = block(h, mask)
        return self.head(self.norm(h))


def training(options: GPTOptions) -> Training:
    """AdamW without decay of vectors, a linear rise and a cosine, gradients clipped to norm 1."""
    if options.width % options.heads:
        raise ValueError(f"heads: a width of {options.width} has no {options.heads} equal parts")

    def optimizer(optim: Any, parameters: Any, lr: float) -> torch.optim.Optimizer:
        every = list(parameters)
        groups = [
            {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in every if p.ndim == 1], "weight_decay": 0.0},
        ]
        return optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))

    def schedule(optimizer: torch.optim.Optimizer, steps: int) -> Any:
        rise = max(1, steps // 10)
        parts = [LinearLR(optimizer, 0.1, total_iters=rise), CosineAnnealingLR(optimizer, max(1, steps - rise))]
        return SequentialLR(optimizer, parts, milestones=[rise])

    return Training(
        options,
        data=lambda: (Text(options.text, options.context), None),
        build=lambda: GPT(options),
        optimizer=optimizer,
        schedule=schedule,
        blocks=lambda model: model.blocks,
        clip=1.0,
    )


if __name__ == "__main__":
    command(GPTOptions, training, "Trains a small GPT on the bytes of a text.")()
