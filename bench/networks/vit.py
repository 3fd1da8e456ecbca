"""ViT-B/16 (Dosovitskiy et al., 2020)."""

import torch
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, PATCH = 768, 12, 12, 16


class Block(nn.Module):
    """Attention, then an MLP, each on a layer_norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.between(x))


class ViT(nn.Module):
    """Images (N, 3, side, side), side a multiple of 16 -> logits (N, classes)."""

    def __init__(self, classes: int, side: int, depth: int = DEPTH) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        # As embeddings, for whose gradients there is a rule: those of expanded parameters are torch's own sums.
        self.token, self.positions = nn.Embedding(1, WIDTH), nn.Embedding((side // PATCH) ** 2 + 1, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        count = patches.shape[1] + 1
        places = torch.arange(count, device=x.device).expand(len(x), count)
        h = torch.cat([self.token(torch.zeros_like(places[:, :1])), patches], 1) + self.positions(places)
        return self.head(self.norm(self.blocks(h)[:, 0]))
