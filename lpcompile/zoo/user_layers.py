"""User-style architectures: what the blocks are made of, and how they are wired."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.zoo.entry import InputMaker, Inputs, floats, generator, plain_text, token_ids
from lpcompile.zoo.user_forms import WIDTH, residuals


class WholeTransformer(nn.Module):
    """nn.Transformer with both masks, embeddings around it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(99, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 3, 3, 32, batch_first=True)
        self.head = nn.Linear(WIDTH, 99)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.transformer(self.words(source), self.words(target), tgt_mask=mask))


class LstmTagger(nn.Module):
    """Residual LSTM layers whose hidden state is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(99, WIDTH)
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True) for _ in range(5))
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            out, _ = layer(x)
            x = x + out
        return self.head(x)


class UNet(nn.Module):
    """Skips from every level of the way down to the same level of the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 12, 16, 24]
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(
            nn.Conv2d(a + b, a, 3, padding=1) for a, b in reversed(list(itertools.pairwise(widths)))
        )
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [F.relu(self.stem(x))]
        for down in self.down:
            features.append(F.relu(down(features[-1])))
        x = features.pop()
        for up in self.up:
            skip = features.pop()
            x = F.relu(up(torch.cat([F.interpolate(x, size=skip.shape[-2:]), skip], dim=1)))
        return self.head(x)


class DenseConcat(nn.Module):
    """Every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH + 8 * i, 8) for i in range(8))
        self.head = nn.Linear(WIDTH + 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(F.relu(layer(torch.cat(features, dim=1))))
        return self.head(torch.cat(features, dim=1))


class TwoTower(nn.Module):
    """Two encoders that meet only in the similarity matrix at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(*residuals(4))
        self.right = nn.Sequential(*residuals(4))
        self.temperature = nn.Parameter(torch.tensor(0.1))

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        first = F.normalize(self.left(query), dim=-1)
        second = F.normalize(self.right(document), dim=-1)
        return first @ second.t() / self.temperature


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))
        self.squeeze = nn.ModuleList(nn.Linear(8, 2) for _ in range(6))
        self.excite = nn.ModuleList(nn.Linear(2, 8) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, squeeze, excite in zip(self.convs, self.squeeze, self.excite, strict=True):
            y = F.relu(conv(x))
            gate = torch.sigmoid(excite(F.relu(squeeze(y.mean((2, 3))))))
            x = x + y * gate[:, :, None, None]
        return x.amax((2, 3))


class EinsumAttention(nn.Module):
    """Attention by einsum, heads split and merged by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(99, WIDTH)
        self.qkv = nn.ParameterList(nn.Parameter(torch.randn(3, 4, WIDTH, 4) * 0.1) for _ in range(6))
        self.out = nn.ParameterList(nn.Parameter(torch.randn(4, 4, WIDTH) * 0.1) for _ in range(6))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = torch.einsum("bnd,thde->tbhne", F.layer_norm(x, (WIDTH,)), qkv).unbind(0)
            weights = torch.einsum("bhne,bhme->bhnm", q, k).mul(0.5).softmax(-1)
            x = x + torch.einsum("bhnm,bhme,hed->bnd", weights, v, out)
        return x


class ChannelShuffle(nn.Module):
    """Half of the channels pass, the other half is convolved, then all are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            kept, changed = x.chunk(2, dim=1)
            x = torch.cat([kept, F.relu(norm(conv(changed)))], dim=1)
            n, c, h, w = x.size()
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return x.flatten(2).mean(-1)


class GroupAndInstanceNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(
            nn.GroupNorm(2, 8) if i % 2 else nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
            for i in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.hardswish(norm(conv(x)))
        return x.mean((-1, -2))


class TextConv(nn.Module):
    """Kim's text CNN on residual convolutions: embeddings, then several kernel widths pooled and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(99, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(4))
        self.windows = nn.ModuleList(nn.Conv1d(WIDTH, 8, size) for size in (2, 3, 4))
        self.head = nn.Linear(24, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).permute(0, 2, 1)
        for block in self.blocks:
            x = x + F.relu(block(x))
        pooled = [F.relu(window(x)).max(dim=-1).values for window in self.windows]
        return self.head(F.dropout(torch.cat(pooled, dim=1), p=0.2, training=self.training))


class ShapeLoops(nn.Module):
    """Views and loops by the sizes of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        rows = x.view(batch * channels, height * width // 8, 8)
        for layer in self.layers:
            rows = rows + torch.tanh(layer(rows))
        columns = [rows[:, index].sum(-1) for index in range(rows.shape[1])]
        return torch.stack(columns, 1).view(x.shape[0], -1)


class FourierMixer(nn.Module):
    """FNet: mixing by the real part of a complex FFT, and a learnt complex filter."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ParameterList(nn.Parameter(torch.randn(9, WIDTH, 2) * 0.1) for _ in range(4))
        self.blocks = residuals(4)

    def forward(self, x: Tensor) -> Tensor:
        for weight, block in zip(self.filters, self.blocks, strict=True):
            x = x + torch.fft.fft2(x, dim=(-2, -1), norm="ortho").real
            x = x + torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(weight), n=16, dim=1)
            x = block(x)
        return x.mean(1)


class ParameterContainers(nn.Module):
    """ParameterDict for scales and shifts, a ModuleDict of activations chosen by name."""

    def __init__(self) -> None:
        super().__init__()
        names = ["a", "b", "c", "d", "e", "f"]
        self.scale = nn.ParameterDict({name: nn.Parameter(torch.ones(WIDTH)) for name in names})
        self.mix = nn.ParameterDict({name: nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1) for name in names})
        self.activations = nn.ModuleDict({"relu": nn.ReLU(inplace=True), "prelu": nn.PReLU(WIDTH)})

    def forward(self, x: Tensor) -> Tensor:
        for index, name in enumerate(self.scale):
            activation = self.activations["prelu" if index % 2 else "relu"]
            x = x + self.scale[name] * activation(x @ self.mix[name])
        return x


class AutocastRegion(nn.Module):
    """Half of the blocks under autocast to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.low = residuals(4)
        self.high = residuals(4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            for block in self.low:
                x = block(x)
        for block in self.high:
            x = block(x.float())
        return x


def _pair(batch: int) -> Inputs:
    stream = generator()
    return (torch.randn(batch, WIDTH, generator=stream), torch.randn(batch, WIDTH, generator=stream)), {}


IMAGE: InputMaker = floats(3, 16, 16)
MODELS: list[tuple[type[nn.Module], InputMaker]] = [
    (WholeTransformer, lambda batch: ((token_ids(batch), token_ids(batch, 12)), {})),
    (LstmTagger, plain_text),
    (UNet, floats(3, 32, 32)),
    (DenseConcat, floats(WIDTH)),
    (TwoTower, _pair),
    (SqueezeExcite, IMAGE),
    (EinsumAttention, plain_text),
    (ChannelShuffle, IMAGE),
    (GroupAndInstanceNorm, IMAGE),
    (TextConv, plain_text),
    (ShapeLoops, IMAGE),
    (FourierMixer, floats(16, WIDTH)),
    (ParameterContainers, floats(WIDTH)),
    (AutocastRegion, floats(WIDTH)),
]
