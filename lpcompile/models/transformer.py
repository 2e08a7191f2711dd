"""Two transformers of plain torch.nn layers: a small vision transformer and a tiny decoder-only language model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention by one fused projection and `scaled_dot_product_attention`."""

    def __init__(self, dim: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}; choose heads that divide it")
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.dropout(self.proj(mixed.transpose(1, 2).reshape(batch, length, dim)))
        return out


class Block(nn.Module):
    """A pre-norm transformer block: two residual branches, attention and MLP."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False, mlp_ratio: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, causal, dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


def _initialise(model: nn.Module, depth: int) -> None:
    """Normal weights of 0.02, a branch's last layer scaled down by depth (GPT-2), so that the stream keeps its size."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            last = name.endswith(("attn.proj", "mlp.2"))
            nn.init.normal_(module.weight, std=0.02 / (2 * depth) ** 0.5 if last else 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class VisionTransformer(nn.Module):
    """A ViT with a class token and learnt positions.

    VisionTransformer(96, 16, dim=384, depth=12, heads=6)     # ViT-S/16 at 96 px
    """

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        *,
        dim: int,
        depth: int,
        heads: int,
        num_classes: int = 1000,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"image_size {image_size} is not a multiple of patch_size {patch_size}")
        self.patch_embed = nn.Conv2d(3, dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, (image_size // patch_size) ** 2 + 1, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(dim, heads, dropout=dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        nn.init.normal_(self.pos_embed, std=0.02)
        nn.init.kaiming_normal_(self.patch_embed.weight, nonlinearity="linear")
        _initialise(self, depth)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], dim=1)
        tokens = self.blocks(self.dropout(tokens + self.pos_embed))
        logits: Tensor = self.head(self.norm(tokens)[:, 0])
        return logits


class GPT(nn.Module):
    """A decoder-only language model over token ids; `tied` shares the embedding with the head, as GPT-2 does."""

    def __init__(
        self,
        vocabulary: int = 256,
        context: int = 64,
        *,
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(context, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(dim, heads, causal=True, dropout=dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        _initialise(self, depth)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def vit_s16_96(**kwargs: Any) -> VisionTransformer:
    """ViT-S/16 for images of 96 px: 12 blocks of width 384, 22 million parameters with 1000 classes."""
    return VisionTransformer(96, 16, dim=384, depth=12, heads=6, **kwargs)


def gpt_tiny(**kwargs: Any) -> GPT:
    """Four blocks of width 64 over bytes: small enough to train in a test."""
    return GPT(**kwargs)


def gpt_30m(**kwargs: Any) -> GPT:
    """Twelve blocks of width 448 over 2048 tokens, with a head of its own: 31 million parameters.

    A tied head would be trained by the first and the last stage, which then exchange its gradient in every step.
    """
    return GPT(2048, 64, **{"dim": 448, "depth": 12, "heads": 7, "tied": False, **kwargs})
