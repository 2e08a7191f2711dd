"""Recipes of random residual models: frozen data that hypothesis shrinks and that prints as the code that makes it.

>>> recipe = Recipe(body=(Residual(norm="batch", add="+="), Attention("sdpa", mask="made")))
>>> model, call = recipe.build(), recipe.call(batch=2)
>>> model(*call.args, **call.kwargs)

Blocks go together in any order, because widths and sizes are passed through them only when the model is built.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

IMAGE, TOKENS, VOCABULARY, CONDITION, HEADS = 8, 5, 11, 3, 2


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
        from tests.properties.random_models import OfArguments, OfMapping

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
