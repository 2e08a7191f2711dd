"""Stage 0 of 2 of GPT: dropout to blocks.1.mlp."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """blocks.N.attn for N = 0, 1."""

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
    """blocks.N for N = 0, 1."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(64)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.0))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage0(nn.Module):
    """Stage 0 of 2 of GPT: dropout to blocks.1.mlp.

    plan.json: stages[0], units 0 to 4.
    The boundary after it: boundaries[0], after add_4.

    Takes: ids: int64[B, 64].
    Gives: float32[B, 64, 64].
    """

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 64)
        self.positions = nn.Embedding(64, 64)
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, ids):
        device = ids.device
        positions = torch.arange(64, device=device)
        tokens = self.tokens(ids)
        tokens = tokens + self.positions(positions)
        tokens = self.dropout(tokens)
        return self.blocks(tokens)
