"""Random residual models for property tests.

A recipe describes a model: frozen data that hypothesis shrinks and that prints as the code that makes it. Blocks go
together in any order, because widths and sizes are threaded through them only when the model is built.

>>> recipe = Recipe(body=(Residual(norm="batch", add="+="), Attention("sdpa", mask="made")))
>>> model, call = recipe.build(), recipe.call(batch=2)
>>> model(*call.args, **call.kwargs)
"""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IMAGE, TOKENS, VOCABULARY, CONDITION, HEADS = 8, 5, 11, 3, 2
WIDTHS = (4, 6, 8)
# Names that a stage or a Program also uses for something of its own.
ODD_NAMES = ("stages", "lam", "plan", "module", "captured")


def examples(count: int) -> settings:
    """Settings of a property: the same few examples on every run, or $LPCOMPILE_EXAMPLES random ones."""
    asked = os.environ.get("LPCOMPILE_EXAMPLES")
    return settings(
        max_examples=int(asked) if asked else count,
        derandomize=asked is None or "CI" in os.environ,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),  # explaining a failure takes longer than finding it
        suppress_health_check=list(HealthCheck),
    )


# ---- recipes


class _Printed:
    """Prints as the call that makes it, defaults left out."""

    def __repr__(self) -> str:
        shown = (f for f in fields(self) if getattr(self, f.name) != f.default)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"


@dataclass(frozen=True, repr=False)
class Residual(_Printed):
    """Two layers with a shortcut around them; the shortcut is projected or padded where the shape changes."""

    width: int = 0  # 0 keeps the width
    stride: int = 1  # images only
    order: str = "post"
    norm: str = "none"
    activation: str = "relu"
    add: str = "+"
    shortcut: str = "projection"
    dropout: str = "none"
    form: str = "plain"


@dataclass(frozen=True, repr=False)
class Attention(_Printed):
    """x + attention(norm(x)); images are taken apart into tokens and put together again."""

    kind: str = "chunk"
    mask: str = "none"
    dropout: bool = False
    norm_first: bool = True


@dataclass(frozen=True, repr=False)
class Concatenate(_Printed):
    """`dense`: cat(x, f(x)). `list`: the same twice, from a list of features. `branches`: two layers side by side,
    projected and added. `halves`: half of the channels is changed by the other half."""

    kind: str = "dense"


@dataclass(frozen=True, repr=False)
class Gate(_Printed):
    """Scale the stream by something made of itself or of another input (where the model has it)."""

    source: str = "self"


@dataclass(frozen=True, repr=False)
class State(_Printed):
    """Blocks around a buffer: added, counted up, or a running mean; or a bare parameter, perhaps added in place."""

    kind: str = "buffer"


@dataclass(frozen=True, repr=False)
class Write(_Printed):
    """In-place arithmetic and slice assignment, on a fresh tensor or on the stream itself."""

    kind: str = "slice"


@dataclass(frozen=True, repr=False)
class Layer(_Printed):
    """A layer of torch.nn as a block (encoder, GRU, pooling), or one layer used in an unusual way."""

    kind: str = "encoder"


@dataclass(frozen=True, repr=False)
class Group(_Printed):
    """Several blocks in a container."""

    children: tuple[Any, ...]
    kind: str = "sequential"


@dataclass(frozen=True, repr=False)
class Around(_Printed):
    """x + children(x), or cat(x, children(x)) as a U-Net does: inside, two tensors are live."""

    children: tuple[Any, ...]
    join: str = "add"


@dataclass(frozen=True, repr=False)
class Repeat(_Printed):
    """One module called several times (once where it changes the shape)."""

    child: Any
    times: int = 2


@dataclass(frozen=True, repr=False)
class Recipe(_Printed):
    """A whole model."""

    body: tuple[Any, ...]
    kind: str = "tokens"  # "image", "tokens" (float vectors) or "words" (ids)
    width: int = 4
    stem: bool = True  # without one the blocks work on the input itself
    head: str = "pool"
    inputs: tuple[str, ...] = ()  # of "condition" (B, 3), "gain" (one dimension, no batch) and "mask" (B, 5)
    gain: int = 7
    style: str = "positional"  # how the inputs are passed
    early: tuple[int, ...] = ()  # an output is taken after these blocks
    early_form: str = "stream"  # the stream itself, a view of it, or a small head's result
    output: str = "tensor"
    echo: str = "none"  # what else is returned: an input, a buffer or the argmax
    tied: bool = False  # the last parameter of some shape is the first of that shape
    alias: bool = False  # the first block has a second name
    frozen: bool = False  # the stem is not trained
    name: str = "block0"  # what the first block is called
    eval_block: bool = False  # the user has put the first block into eval mode
    input_gradient: bool = False

    def build(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = (OfMapping if self.style == "mapping" else OfArguments)(self)
            with torch.no_grad():
                for parameter in model.parameters():  # biases and gains that start at 0 or 1 hide mistakes
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def call(self, batch: int, seed: int = 1) -> Call:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = {
                "x": {
                    "image": torch.randn(batch, self.width if not self.stem else 3, IMAGE, IMAGE),
                    "tokens": torch.randn(batch, TOKENS, self.width),
                    "words": torch.randint(0, VOCABULARY, (batch, TOKENS)),
                }[self.kind],
                "condition": torch.randn(batch, CONDITION),
                "gain": torch.rand(self.gain) + 0.5,
                "mask": torch.rand(batch, TOKENS) < 0.3,
            }
        made["x"].requires_grad_(self.input_gradient)
        made["mask"][:, 0] = False  # a row that is masked everywhere gives nan
        tensors = {name: made[name] for name in ("x", *self.inputs)}
        if self.style == "mapping":
            return Call((tensors,), {})
        if self.style == "keyword":
            return Call((tensors.pop("x"),), tensors)
        positions = ("x", "condition", "gain", "mask")
        last = max(positions.index(name) for name in tensors)
        return Call(tuple(tensors.get(name) for name in positions[: last + 1]), {})


@dataclass(frozen=True)
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# ---- building


@dataclass(frozen=True)
class Shape:
    """What the stream looks like while a model is built."""

    image: bool
    width: int
    size: int
    inputs: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Where the channels are."""
        return 1 if self.image else -1


def layer(shape: Shape, width: int, stride: int = 1, kernel: int = 3, bias: bool = True) -> nn.Module:
    if shape.image:
        return nn.Conv2d(shape.width, width, kernel, stride, kernel // 2, bias=bias)
    return nn.Linear(shape.width, width, bias=bias)


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm over (batch, token, channel)."""

    view = False

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x.transpose(1, 2)).transpose(1, 2)
        return out if self.view else out.contiguous()


class TokenBatchNormView(TokenBatchNorm):
    """The same, but what it returns is a view: writing into it in place goes through its base."""

    view = True


def normalisation(shape: Shape, kind: str) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(shape.width) if shape.image else TokenBatchNorm(shape.width)
    if kind == "batch view" and not shape.image:
        return TokenBatchNormView(shape.width)
    if shape.image:
        return nn.GroupNorm(2 if kind == "group" else 1, shape.width)
    return nn.LayerNorm(shape.width)


class DropPath(nn.Module):
    """Stochastic depth as timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(0.7) / 0.7


class Block(nn.Module):
    """A block may want other inputs than the stream."""

    wants: tuple[str, ...] = ()


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


class ConcatenateBlock(Block):
    def __init__(self, recipe: Concatenate, shape: Shape) -> None:
        super().__init__()
        self.kind, self.dim, self.half, self.shape = recipe.kind, shape.dim, shape.width // 2, shape
        if self.kind in ("dense", "list") and shape.width > 10:
            self.kind = "halves"
        if self.kind == "halves":
            self.left: Any = layer(replace(shape, width=shape.width - self.half), self.half)
        elif self.kind == "branches":
            self.left, self.right = layer(shape, 2), layer(shape, 2, kernel=1)
            self.join = layer(replace(shape, width=4), shape.width, kernel=1)
        else:
            widths = [shape.width, shape.width + 2] if self.kind == "list" else [shape.width]
            self.left = nn.ModuleList(layer(replace(shape, width=w), 2) for w in widths)
            self.shape = replace(shape, width=widths[-1] + 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "halves":
            left = x.narrow(self.dim, 0, self.half)
            right = x.narrow(self.dim, self.half, x.shape[self.dim] - self.half)
            return torch.cat([left + self.left(right).tanh(), right], self.dim)
        if self.kind == "branches":
            return x + self.join(torch.cat((self.left(x).tanh(), self.right(x).sigmoid()), dim=self.dim))
        features = [x]
        for inner in self.left:
            features.append(inner(F.relu(torch.cat(features, self.dim))))
        return torch.cat(features, self.dim)


class GateBlock(Block):
    def __init__(self, recipe: Gate, shape: Shape) -> None:
        super().__init__()
        self.source, self.shape = recipe.source if recipe.source in shape.inputs else "self", shape
        self.wants = (self.source,) if self.source != "self" else ()
        if self.source != "gain":
            self.fc = nn.Linear(CONDITION if self.source == "condition" else shape.width, shape.width)

    def forward(self, x: Tensor, condition: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        if gain is not None:
            return x * gain.mean() + gain[0]
        pooled = condition if condition is not None else x.mean((2, 3) if self.shape.image else 1)
        scale = torch.sigmoid(self.fc(pooled))
        return x * (scale[:, :, None, None] if self.shape.image else scale.unsqueeze(1))


class StateBlock(Block):
    def __init__(self, recipe: State, shape: Shape) -> None:
        super().__init__()
        self.kind, self.shape = recipe.kind, shape
        size = (shape.width, 1, 1) if shape.image else (shape.width,)
        self.inner = layer(shape, shape.width)  # a child: the block is traced, not kept whole
        if recipe.kind.startswith("parameter"):
            self.weight = nn.Parameter(torch.randn(size))
        else:
            self.register_buffer("table", torch.randn(size), persistent=recipe.kind != "scratch")
        if recipe.kind == "count":
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(x)
        if self.kind == "parameter inplace":
            return x.add_(self.weight)
        if self.kind == "parameter":
            return x * self.weight
        if self.kind == "count":
            self.calls += 1
            return x / self.calls
        if self.kind == "running" and self.training:
            with torch.no_grad():
                self.table.mul_(0.9).add_(x.mean(), alpha=0.1)
        return x + self.table


class WriteBlock(Block):
    def __init__(self, recipe: Write, shape: Shape) -> None:
        super().__init__()
        self.kind, self.shape = recipe.kind, shape
        self.inner = layer(shape, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "stream":  # the stream itself is changed; what came before still holds it
            x.mul_(0.5)
            return x + self.inner(x)
        out = self.inner(x)
        if self.kind == "slice":
            out[:, :2] = 0.0
        elif self.kind == "view":
            out.view(out.shape[0], -1)[:, :3].mul_(0.5)
        elif self.kind == "zeros":
            empty = torch.zeros_like(out)
            empty[:, 1:] += out[:, 1:]
            out = empty
        else:
            out.mul_(0.5).clamp_(-1.0, 1.0)
        return x + out


class StraightThrough(torch.autograd.Function):
    """sign(x) with the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0.5


class LayerBlock(Block):
    def __init__(self, recipe: Layer, shape: Shape) -> None:
        super().__init__()
        self.shape, self.kind = shape, recipe.kind
        if shape.image and recipe.kind in ("encoder", "gru"):
            self.kind = "pool"
        if self.kind == "pool" and (not shape.image or shape.size <= 2):
            self.kind = "detached"
        if self.kind == "encoder":
            self.inner: Any = nn.TransformerEncoderLayer(shape.width, HEADS, 8, dropout=0.1, batch_first=True)
        elif self.kind == "gru":
            self.inner = nn.GRU(shape.width, shape.width, batch_first=True)
        elif self.kind == "pool":
            self.inner = nn.MaxPool2d(2)
            self.shape = replace(shape, size=shape.size // 2)
        else:
            self.inner = layer(shape, shape.width)
        if self.kind == "weight norm":
            self.inner = nn.utils.parametrizations.weight_norm(self.inner)
        if self.kind == "quantise":
            self.codes = nn.Embedding(shape.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind in ("encoder", "pool"):
            return self.inner(x)
        out = getattr(self, f"_{self.kind.replace(' ', '_')}", self.inner)(x)
        return x + out

    def _gru(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]

    def _detached(self, x: Tensor) -> Tensor:
        return self.inner(x.detach())

    def _no_grad(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.inner(x).abs().mean()
        return self.inner(x) / (1 + scale)

    def _autocast(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)

    def _checkpoint(self, x: Tensor) -> Tensor:
        return checkpoint(lambda t: F.gelu(self.inner(t)), x, use_reentrant=False)

    def _function(self, x: Tensor) -> Tensor:
        return self.inner(StraightThrough.apply(x))

    def _double(self, x: Tensor) -> Tensor:
        return self.inner((x.double() * 0.3).float())

    def _fourier(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.inner(x)) * 0.5, n=x.shape[-1])

    def _quantise(self, x: Tensor) -> Tensor:
        places = self.inner(x).argmax(self.shape.dim)
        return self.codes(places).movedim(-1, self.shape.dim)


def run(block: nn.Module, x: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
    return block(x, **{name: extras[name] for name in getattr(block, "wants", ())})


def wanted(blocks: Iterable[nn.Module]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for block in blocks for name in getattr(block, "wants", ())))


class GroupBlock(Block):
    def __init__(self, recipe: Group, shape: Shape) -> None:
        super().__init__()
        blocks, self.shape = chain(recipe.children, shape)
        self.kind, self.wants = recipe.kind, wanted(blocks)
        if recipe.kind == "sequential" and not self.wants:
            self.inner: Any = nn.Sequential(*blocks)
        elif recipe.kind == "dict":
            self.inner = nn.ModuleDict({f"block{i}": block for i, block in enumerate(blocks)})
        elif recipe.kind == "bare":
            self.inner = nn.Module()
            for i, block in enumerate(blocks):
                setattr(self.inner, f"block{i}", block)
        else:
            self.inner = nn.ModuleList(blocks)

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        if isinstance(self.inner, nn.Sequential):
            return self.inner(x)
        for block in self.inner.children():
            x = run(block, x, extras)
        return x


class AroundBlock(Block):
    def __init__(self, recipe: Around, shape: Shape) -> None:
        super().__init__()
        blocks, after = chain(recipe.children, shape)
        self.inner, self.wants, self.dim = nn.ModuleList(blocks), wanted(blocks), shape.dim
        self.concatenate = recipe.join == "cat" and after.size == shape.size and shape.width + after.width <= 16
        self.project = layer(shape, after.width, shape.size // after.size) if after != shape else None
        self.shape = replace(shape, width=shape.width + after.width) if self.concatenate else after

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        out = x
        for block in self.inner:
            out = run(block, out, extras)
        if self.concatenate:
            return torch.cat([x, out], self.dim)
        return out + (x if self.project is None else self.project(x))


class RepeatBlock(Block):
    def __init__(self, recipe: Repeat, shape: Shape) -> None:
        super().__init__()
        self.inner, self.shape = make(recipe.child, shape)
        self.times, self.wants = recipe.times if self.shape == shape else 1, wanted([self.inner])

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        for _ in range(self.times):
            x = run(self.inner, x, extras)
        return x


BLOCKS: dict[type, type[Any]] = {
    Residual: ResidualBlock,
    Attention: AttentionBlock,
    Concatenate: ConcatenateBlock,
    Gate: GateBlock,
    State: StateBlock,
    Write: WriteBlock,
    Layer: LayerBlock,
    Group: GroupBlock,
    Around: AroundBlock,
    Repeat: RepeatBlock,
}


def make(recipe: Any, shape: Shape) -> tuple[nn.Module, Shape]:
    block = BLOCKS[type(recipe)](recipe, shape)
    return block, block.shape


def chain(recipes: Iterable[Any], shape: Shape) -> tuple[list[nn.Module], Shape]:
    blocks = []
    for recipe in recipes:
        block, shape = make(recipe, shape)
        blocks.append(block)
    return blocks, shape


Pair = namedtuple("Pair", ("main", "early", "echo"))


@dataclass
class Output:
    main: Tensor
    early: list[Tensor]
    echo: Any = None


class RandomModel(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.image = recipe, recipe.kind == "image"
        start = Shape(self.image, recipe.width, IMAGE if self.image else TOKENS, recipe.inputs)
        self.register_buffer("temperature", torch.ones(2))
        self.stem: Any = nn.Embedding(VOCABULARY, recipe.width) if recipe.kind == "words" else nn.Identity()
        if recipe.stem and recipe.kind != "words":
            self.stem = layer(replace(start, width=3 if self.image else recipe.width), recipe.width)
        blocks, shapes = [], [start]
        self.names = []
        for i, item in enumerate(recipe.body):
            block, shape = make(item, shapes[-1])
            self.names.append(f"block{i}" if i else recipe.name)
            self.add_module(self.names[-1], block)
            blocks.append(block)
            shapes.append(shape)
        self.taps = sorted({i % len(blocks) for i in recipe.early}) if blocks else []
        if recipe.early_form == "head":
            self.early_heads = nn.ModuleList(nn.Linear(shapes[i + 1].width, 2) for i in self.taps)
        if recipe.head == "pool":
            self.head = nn.Linear(shapes[-1].width, 3)
        self.tie_words = recipe.head == "words" and recipe.kind == "words" and shapes[-1].width == recipe.width
        if recipe.alias and blocks:
            self.second_name = blocks[0]
        if recipe.eval_block and blocks:
            blocks[0].eval()
        self.stem.requires_grad_(not recipe.frozen)
        if recipe.tied:
            self.tie()

    def tie(self) -> None:
        """Make the last weight of some shape the first weight of that shape."""
        owners: dict[tuple[int, ...], list[nn.Module]] = {}
        for module in self.modules():
            if type(module) in (nn.Linear, nn.Conv2d) and module.weight.requires_grad:
                owners.setdefault(tuple(module.weight.shape), []).append(module)
        first, *_, last = max(owners.values(), key=len, default=[self, self]) * 2
        if first is not last:
            last.weight = first.weight

    def pooled(self, x: Tensor) -> Tensor:
        return x.mean((2, 3) if self.image else 1)

    def tapped(self, x: Tensor, i: int) -> Tensor:
        if self.recipe.early_form == "head":
            return self.early_heads[i](self.pooled(x))
        return x.flatten(1) if self.recipe.early_form == "view" else x

    def compute(self, x: Tensor, extras: dict[str, Tensor]) -> Any:
        given, early = x, []
        x = self.stem(x)
        for i, name in enumerate(self.names):
            x = run(self._modules[name], x, extras)  # type: ignore[arg-type]
            if i in self.taps:
                early.append(self.tapped(x, len(early)))
        if self.recipe.head == "pool":
            x = self.head(self.pooled(x))
        elif self.tie_words:
            x = F.linear(x, self.stem.weight)
        return self.packed(x, early, given)

    def packed(self, x: Tensor, early: list[Tensor], given: Tensor) -> Any:
        echo = {"input": given, "buffer": self.temperature, "argmax": x.argmax(-1), "none": None}[self.recipe.echo]
        form = self.recipe.output
        if form == "dict":
            return {"main": x, "early": {f"tap{i}": t for i, t in enumerate(early)}, "echo": echo}
        if form == "dataclass":
            return Output(x, early, echo)
        if form == "namedtuple":
            return Pair(x, early, echo)
        if form == "tuple" or early or echo is not None:
            return (x, *early, echo)
        return x

    def __repr__(self) -> str:
        return f"{self.recipe!r}.build()"


class OfArguments(RandomModel):
    def forward(
        self, x: Tensor, condition: Tensor | None = None, gain: Tensor | None = None, mask: Tensor | None = None
    ) -> Any:
        given = {"condition": condition, "gain": gain, "mask": mask}
        return self.compute(x, {name: t for name, t in given.items() if t is not None})


class OfMapping(RandomModel):
    """All inputs in one mapping."""

    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.compute(batch["x"], {name: t for name, t in batch.items() if name != "x"})


# ---- strategies: the simplest choice comes first, so that hypothesis shrinks towards it


def one_of(*choices: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)


LAYERS = ("encoder", "gru", "pool", "detached", "no_grad", "autocast", "checkpoint", "function", "weight norm",
          "double", "fourier", "quantise")  # fmt: skip
residuals = st.builds(
    Residual,
    width=one_of(0, *WIDTHS),
    stride=one_of(1, 1, 2),
    order=one_of("post", "pre"),
    norm=one_of("none", "batch", "group", "layer"),
    activation=one_of("relu", "gelu", "swish", "inplace", "functional inplace", "method"),
    add=one_of("+", "torch.add", "+=", "add_"),
    shortcut=one_of("projection", "pad"),
    dropout=one_of("none", "module", "functional", "path", "branch"),
    form=one_of("plain", "sequential", "list", "dict"),
)
attentions = st.builds(
    Attention,
    kind=one_of("chunk", "einsum", "sdpa", "torch", "torch weights"),
    mask=one_of("none", "made", "buffer", "input"),
    dropout=st.booleans(),
    norm_first=one_of(True, False),
)
others = st.one_of(
    st.builds(Concatenate, one_of("dense", "branches", "list", "halves")),
    st.builds(Gate, one_of("self", "condition", "gain")),
    st.builds(State, one_of("buffer", "scratch", "parameter", "parameter inplace", "count", "running")),
    st.builds(Write, one_of("arithmetic", "slice", "view", "zeros", "stream")),
    st.builds(Layer, one_of(*LAYERS)),
)
simple_blocks = st.one_of(residuals, attentions, others)


def _children(blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(blocks, min_size=1, max_size=3).map(tuple)


blocks = st.recursive(
    simple_blocks,
    lambda inner: st.one_of(
        st.builds(Group, _children(inner), one_of("sequential", "list", "dict", "bare")),
        st.builds(Around, _children(inner), one_of("add", "cat")),
        st.builds(Repeat, inner, one_of(2, 3)),
    ),
    max_leaves=4,
)


@st.composite
def recipes(draw: st.DrawFn, max_blocks: int = 4) -> Recipe:
    kind = draw(one_of("tokens", "image", "words"))
    inputs = draw(st.lists(one_of("condition", "gain", "mask"), unique=True, max_size=2))
    return Recipe(
        body=tuple(draw(st.lists(blocks, min_size=1, max_size=max_blocks))),
        kind=kind,
        width=draw(one_of(*WIDTHS)),
        stem=kind == "words" or draw(one_of(True, True, True, False)),
        head=draw(one_of("pool", "none", "words")),
        inputs=tuple(sorted(inputs)),
        style=draw(one_of("positional", "keyword", "mapping")),
        early=tuple(draw(st.lists(one_of(0, 1, 2), unique=True, max_size=2))) if draw(one_of(False, True)) else (),
        early_form=draw(one_of("stream", "head", "view")),
        output=draw(one_of("tensor", "tuple", "dict", "dataclass", "namedtuple")),
        echo=draw(one_of("none", "none", "input", "buffer", "argmax")),
        tied=draw(one_of(False, False, True)),
        alias=draw(one_of(False, False, True)),
        frozen=draw(one_of(False, False, True)),
        name=draw(one_of("block0", "block0", *ODD_NAMES)),
        eval_block=draw(one_of(False, False, False, True)),
        input_gradient=kind != "words" and draw(one_of(False, False, True)),
    )
