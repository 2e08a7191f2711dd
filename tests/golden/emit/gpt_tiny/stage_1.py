"""Stage 1 of 2 of GPT: blocks.2.attn to head."""

from collections import OrderedDict

import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """blocks.N.attn for N = 2, 3."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.proj = nn.Linear(64, 64)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        batch = x.shape[0]
        x = self.qkv(x)
        query, key, value = x.chunk(3, dim=-1)
        query = query.view(batch, 64, 4, 16).transpose(1, 2)
        key = key.view(batch, 64, 4, 16).transpose(1, 2)
        value = value.view(batch, 64, 4, 16).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, 64, 64)
        attended = self.proj(attended)
        return self.dropout(attended)


class Block(nn.Module):
    """blocks.N for N = 2, 3."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(64)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.0))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage1(nn.Module):
    """Stage 1 of 2 of GPT: blocks.2.attn to head.

    plan.json: stages[1], units 5 to 9.

    Takes: lam: float32[B, 64, 64].
    Gives: output 0 of the model.
    """

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(OrderedDict({"2": Block(), "3": Block()}))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 256, bias=False)

    def forward(self, lam):
        x = self.blocks(lam)
        x = self.norm(x)
        return self.head(x)
