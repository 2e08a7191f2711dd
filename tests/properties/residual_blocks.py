"""Blocks of random models that add to the stream: residual blocks and attention, as a recipe describes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.properties.block_parts import Block, DropPath, Shape, layer, normalisation
from tests.properties.recipes import HEADS, TOKENS, Attention, Residual


class ResidualBlock(Block):
    def __init__(self, recipe: Residual, shape: Shape) -> None:
        super().__init__()
        self.recipe, self.image = recipe, shape.image
        width = recipe.width or shape.width
        self.stride = recipe.stride if shape.image and shape.size > 2 else 1  # batch norm needs more than one value
        self.shape = replace(shape, width=width, size=-(-shape.size // self.stride))
        first, second = layer(shape, width, self.stride), layer(self.shape, width, bias=recipe.norm != "batch")
        before = normalisation(shape if recipe.order == "pre" else self.shape, recipe.norm)
        layers = (first, second, before, normalisation(self.shape, recipe.norm))
        if recipe.form == "sequential":
            self.layers: Any = nn.Sequential(*layers)
        elif recipe.form == "list":
            self.layers = nn.ModuleList(layers)
        elif recipe.form == "dict":
            self.layers = nn.ModuleDict(zip(("first", "second", "norm1", "norm2"), layers, strict=True))
        else:
            self.first, self.second, self.norm1, self.norm2 = layers
        same = width == shape.width and self.stride == 1
        self.extra = width - shape.width
        self.padded = not same and recipe.shortcut == "pad" and self.extra >= 0
        if not same and not self.padded:
            kernel = layer(shape, width, self.stride, kernel=1, bias=False)
            self.shortcut: Any = nn.Sequential(kernel, normalisation(self.shape, recipe.norm))
        else:
            self.shortcut = None
        if recipe.activation in ("relu", "inplace"):
            self.act = nn.ReLU(inplace=recipe.activation == "inplace")
        if recipe.dropout == "module":
            self.drop: Any = nn.Dropout(0.3, inplace=recipe.activation == "inplace")
        elif recipe.dropout == "path":
            self.drop = DropPath()

    def parts(self) -> tuple[nn.Module, ...]:
        if self.recipe.form == "plain":
            return self.first, self.second, self.norm1, self.norm2
        return tuple(self.layers.values() if self.recipe.form == "dict" else self.layers)

    def activate(self, x: Tensor, fresh: bool = True) -> Tensor:
        kind = self.recipe.activation
        if kind == "functional inplace":
            return F.relu(x, inplace=fresh)
        if kind == "method":
            return x.relu_() if fresh else x.relu()
        if kind == "gelu":
            return F.gelu(x)
        if kind == "swish":
            return x * torch.sigmoid(x)
        return self.act(x) if fresh or kind == "relu" else F.relu(x)

    def around(self, x: Tensor) -> Tensor:
        if self.padded:
            if not self.image:
                return F.pad(x, (0, self.extra))
            return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return x if self.shortcut is None else self.shortcut(x)

    def dropped(self, x: Tensor) -> Tensor:
        kind = self.recipe.dropout
        if kind == "functional":
            return F.dropout(x, 0.3, self.training)
        if kind == "branch" and self.training:
            keep = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), device=x.device) < 0.7
            return x * keep.to(x.dtype)
        return self.drop(x) if kind in ("module", "path") else x

    def added(self, out: Tensor, x: Tensor) -> Tensor:
        kind = self.recipe.add
        if kind == "+=":
            out += x
            return out
        if kind == "add_":
            return out.add_(x, alpha=0.5)
        return torch.add(x, out) if kind == "torch.add" else x + out

    def forward(self, x: Tensor) -> Tensor:
        first, second, norm1, norm2 = self.parts()
        if self.recipe.order == "pre":
            out = first(self.activate(norm1(x), fresh=self.recipe.norm != "none"))
            out = second(self.dropped(self.activate(norm2(out))))
            return self.added(out, self.around(x))
        out = norm2(second(self.dropped(self.activate(norm1(first(x))))))
        return self.activate(self.added(out, self.around(x)))


class AttentionBlock(Block):
    def __init__(self, recipe: Attention, shape: Shape) -> None:
        super().__init__()
        self.recipe, self.shape, width = recipe, shape, shape.width
        tokens = shape.size**2 if shape.image else TOKENS
        self.norm = nn.LayerNorm(width)
        self.rate = 0.2 if recipe.dropout else 0.0
        if recipe.kind.startswith("torch"):
            self.attention = nn.MultiheadAttention(width, HEADS, dropout=self.rate, batch_first=True)
        else:
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mask = recipe.mask
        if recipe.mask == "buffer":
            self.register_buffer("causal", torch.ones(tokens, tokens).triu(1).bool(), persistent=False)
        if recipe.mask == "input":
            self.mask = "input" if "mask" in shape.inputs and not shape.image else "none"
            self.wants = ("mask",) if self.mask == "input" else ()

    def forbidden(self, x: Tensor, padding: Tensor | None) -> Tensor | None:
        """True where attention must not look, in a shape that broadcasts over (batch, head, query, key)."""
        if self.mask == "buffer":
            return self.causal
        if self.mask == "made":
            places = torch.arange(x.shape[1], device=x.device)
            return places[:, None] < places
        return padding[:, None, None, :] if padding is not None else None

    def attend(self, x: Tensor, padding: Tensor | None) -> Tensor:
        forbidden, kind = self.forbidden(x, padding), self.recipe.kind
        if kind.startswith("torch"):
            weights = kind == "torch weights"
            square = forbidden if padding is None else None
            out, seen = self.attention(x, x, x, key_padding_mask=padding, attn_mask=square, need_weights=weights)
            return out + seen.mean() if weights else out
        batch, tokens, width = x.shape
        q, k, v = (t.view(batch, tokens, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if kind == "sdpa":
            allowed = None if forbidden is None else ~forbidden
            rate = self.rate if self.training else 0.0
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=rate)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) if kind == "einsum" else q @ k.transpose(-2, -1)
            scores = scores / (width // HEADS) ** 0.5
            if forbidden is not None:
                scores = scores.masked_fill(forbidden, float("-inf"))
            out = F.dropout(scores.softmax(-1), self.rate, self.training) @ v
        return self.out(out.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2) if self.shape.image else x
        if self.recipe.norm_first:
            tokens = tokens + self.attend(self.norm(tokens), mask)
        else:
            tokens = self.norm(tokens + self.attend(tokens, mask))
        return tokens.transpose(1, 2).reshape(x.shape).contiguous() if self.shape.image else tokens
