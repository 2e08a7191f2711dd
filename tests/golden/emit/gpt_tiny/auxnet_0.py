"""AuxNet 0 of GPT: a small network in the place of stage 0, dropout to blocks.1.mlp."""

import torch
from torch import nn


class Block(nn.Module):
    """blocks.0, in part."""

    def __init__(self):
        super().__init__()
        self.norm2 = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 88), nn.GELU(), nn.Linear(88, 64))

    def forward(self, x):
        return x + self.mlp(self.norm2(x))


class AuxNet0(nn.Module):
    """AuxNet 0 of GPT: a small network in the place of stage 0, dropout to blocks.1.mlp.

    derived, fresh; keeps blocks.0 of 2 blocks; thinned: blocks.0.mlp.0 (88 channels).
    It costs 9.9 % of the stage and runs on rank 0.
    plan.json: stages[0], units 0 to 4.
    The boundary after it: boundaries[0], after add_4.

    Takes: ids: int64[B, 64].
    Gives: float32[B, 64, 64].
    """

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 64)
        self.positions = nn.Embedding(64, 64)
        self.blocks = nn.Sequential(Block())

    def forward(self, ids):
        device = ids.device
        positions = torch.arange(64, device=device)
        tokens = self.tokens(ids)
        tokens = tokens + self.positions(positions)
        return self.blocks(tokens)
