"""User-style modules whose calls, inputs or outputs are unusual: what people write, and no model zoo contains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.zoo.entry import InputMaker, Inputs, floats, generator, padding_mask, token_ids

WIDTH = 16


class ResidualMlp(nn.Module):
    """The block that most of these models repeat: norm, two linear layers, add."""

    def __init__(self, width: int = WIDTH, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


def residuals(count: int = 6, width: int = WIDTH, dropout: float = 0.0) -> nn.ModuleList:
    return nn.ModuleList(ResidualMlp(width, dropout) for _ in range(count))


class FunctionalForward(nn.Module):
    """No layers at all: parameters in lists and everything by torch.nn.functional."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.1)
        self.kernels = nn.ParameterList(nn.Parameter(torch.randn(8, 8, 3, 3) * 0.1) for _ in range(6))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(8)) for _ in range(6))
        self.head = nn.Parameter(torch.randn(10, 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.stem, padding=1)
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = x + F.relu(F.conv2d(F.instance_norm(x), kernel, bias, padding=1))
        return F.linear(F.dropout(x.mean((2, 3)), 0.1, self.training), self.head)


class DirectForwardCalls(nn.Module):
    """Calls `.forward()` of its blocks, which skips hooks and everything that relies on `__call__`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block.forward(x)
        return self.head.forward(x)


class SeveralInputs(nn.Module):
    """An image, a row of a table and a text."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.table = nn.Linear(5, WIDTH)
        self.words = nn.Embedding(99, WIDTH)
        self.blocks = residuals()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, image: Tensor, row: Tensor, ids: Tensor) -> Tensor:
        x = self.image(image).mean((2, 3)) + self.table(row) + self.words(ids).mean(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class KeywordOnlyInputs(nn.Module):
    """Inputs that can only be given by name, one of them a plain Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()

    def forward(self, *, features: Tensor, weights: Tensor, scale: float = 1.0) -> Tensor:
        x = features * scale
        for block in self.blocks:
            x = block(x) * weights
        return x


class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()
        self.heads = nn.ModuleDict({"colour": nn.Linear(WIDTH, 3), "shape": nn.Linear(WIDTH, 5)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x)
        return {name: head(x) for name, head in self.heads.items()} | {"features": x}


@dataclass
class Prediction:
    logits: Tensor
    hidden: Tensor
    aux: Tensor | None = None


class DataclassOutput(nn.Module):
    """Returns a dataclass that torch's pytree does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Prediction:
        for block in self.blocks:
            x = block(x)
        return Prediction(logits=self.head(x), hidden=x)


class Box(NamedTuple):
    centre: Tensor
    size: Tensor


class NamedTupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()
        self.centre = nn.Linear(WIDTH, 2)
        self.size = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Box:
        for block in self.blocks:
            x = block(x)
        return Box(self.centre(x), F.softplus(self.size(x)))


class ListOutput(nn.Module):
    """A feature pyramid: a list with one tensor per level."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, stride=2, padding=1) for i in range(5))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for level in self.levels:
            x = F.relu(level(x))
            features.append(x)
        return features


class NestedTupleInputs(nn.Module):
    """Inputs in a tuple of a tuple and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()

    def forward(self, pair: tuple[Tensor, tuple[Tensor, Tensor]], extra: dict[str, Tensor]) -> Tensor:
        first, (second, third) = pair
        x = first + second * third
        for block in self.blocks:
            x = block(x) + extra["bias"]
        return x


class OptionalInputs(nn.Module):
    """An argument that may be None, and here is."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()

    def forward(self, x: Tensor, mask: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x) if mask is None else block(x) * mask
        return x if shift is None else x + shift


class EarlyExits(nn.Module):
    """A classifier after every second block; all of them are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals(8)
        self.exits = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        outputs = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index % 2:
                outputs.append(self.exits[index // 2](x))
        return tuple(outputs)


class TupleStream(nn.Module):
    """Two streams that every block exchanges, as in reversible networks."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.right = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        state = (x, x)
        for left, right in zip(self.left, self.right, strict=True):
            first = state[0] + torch.tanh(left(state[1]))
            state = (first, state[1] + torch.tanh(right(first)))
        return torch.cat(state, dim=-1)


class MaskedMultihead(nn.Module):
    """nn.MultiheadAttention with a padding mask and a causal mask made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(99, WIDTH)
        self.attention = nn.ModuleList(nn.MultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(6))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(ids)
        causal = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device), diagonal=1)
        for attention, norm in zip(self.attention, self.norms, strict=True):
            y = norm(x)
            x = x + attention(y, y, y, key_padding_mask=attention_mask == 0, attn_mask=causal, need_weights=False)[0]
        return x


def _rand(batch: int, *shape: int) -> Tensor:
    return torch.randn(batch, *shape, generator=generator())


def _several(batch: int) -> Inputs:
    return (_rand(batch, 3, 16, 16), _rand(batch, 5), token_ids(batch, 7)), {}


def _keywords(batch: int) -> Inputs:
    return (), {"features": _rand(batch, WIDTH), "weights": _rand(batch, WIDTH), "scale": 0.5}


def _nested(batch: int) -> Inputs:
    x = _rand(batch, WIDTH)
    return ((x, (x + 1, x - 1)),), {"extra": {"bias": x * 0.1}}


def _masked(batch: int) -> Inputs:
    return (token_ids(batch), padding_mask(batch)), {}


MODELS: list[tuple[type[nn.Module], InputMaker]] = [
    (FunctionalForward, floats(3, 16, 16)),
    (DirectForwardCalls, floats(WIDTH)),
    (SeveralInputs, _several),
    (KeywordOnlyInputs, _keywords),
    (DictOutput, floats(WIDTH)),
    (DataclassOutput, floats(WIDTH)),
    (NamedTupleOutput, floats(WIDTH)),
    (ListOutput, floats(3, 64, 64)),
    (NestedTupleInputs, _nested),
    (OptionalInputs, lambda batch: ((_rand(batch, WIDTH), None), {"shift": _rand(batch, WIDTH)})),
    (EarlyExits, floats(WIDTH)),
    (TupleStream, floats(WIDTH)),
    (MaskedMultihead, _masked),
]
