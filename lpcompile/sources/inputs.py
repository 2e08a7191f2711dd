"""Example inputs: shapes as a person writes them, and tensors of these shapes."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lpcompile.errors import UsageError

DEFAULT_BATCH = 8
Shape = str | Sequence[int]
InputShape = tuple[str, tuple[int, ...], torch.dtype]  # a keyword or "", the shape without batch, the dtype

_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)?(?::(?P<dtype>\w+))?")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
}


@dataclass(frozen=True)
class Source:
    """A model with example inputs; `notes` are the assumptions that were made."""

    name: str
    model: nn.Module
    example_args: tuple[Any, ...]
    example_kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputRequest:
    """The inputs that were asked for: batch size, perhaps shapes, and the seed and device to make them with."""

    batch: int | None
    shapes: list[InputShape] | None
    seed: int
    device: str

    @property
    def size(self) -> int:
        return DEFAULT_BATCH if self.batch is None else self.batch


def closest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)


def parse_input(text: Shape) -> list[InputShape]:
    """Read "3x32x32", "3x32x32,16:int64" or "ids=16:int64,mask=16:bool"; a sequence of numbers is one shape.

    The batch dimension is never written. Without a dtype an input is float32.
    """
    if not isinstance(text, str):
        return [("", tuple(text), torch.float32)]
    wanted: list[InputShape] = []
    for part in text.split(","):
        match = _INPUT.fullmatch(part.strip())
        if match is None or not part.strip():
            raise UsageError(
                f"input {part.strip()!r} in {text!r} is not a shape; write sizes with x between them and without the "
                "batch, such as 3x32x32, and a dtype after a colon, such as 16:int64"
            )
        name, shape, dtype = match["name"] or "", match["shape"], match["dtype"] or "float32"
        if dtype not in _DTYPES:
            raise UsageError(f"input {part.strip()!r} has the dtype {dtype!r}; use one of {', '.join(_DTYPES)}")
        wanted.append((name, tuple(int(size) for size in shape.split("x")) if shape else (), _DTYPES[dtype]))
    return wanted


def parse_arguments(given: Iterable[str]) -> dict[str, object]:
    """Arguments of a factory as a person writes them, values or text: ["depth=20", "act=gelu", "sizes=(1, 2)"]."""
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"--arg {text}: write NAME=VALUE, as in --arg depth=20")
        try:
            found[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            found[name.strip()] = value.strip()
    return found


def random_inputs(
    request: InputRequest, default: list[InputShape], *, high: int = 2
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors of the shapes that were asked for, or else of the default ones.

    Integers lie below `high`, by default 2: 0 and 1 are valid in every embedding.
    """
    generator = torch.Generator().manual_seed(request.seed)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    wanted = request.shapes or default
    if request.shapes and len(default) == 1 and len(wanted) == 1 and not default[0][2].is_floating_point:
        # "--input 128" for a model of token ids is a length: the model's own dtype stays.
        wanted = [(name, shape, default[0][2]) for name, shape, _ in wanted]
    for name, shape, dtype in wanted:
        tensor = _random((request.size, *shape), dtype, high, generator).to(request.device)
        if name:
            kwargs[name] = tensor
        else:
            args.append(tensor)
    return tuple(args), kwargs


def _random(shape: tuple[int, ...], dtype: torch.dtype, high: int, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, device="cpu").to(dtype)
    return torch.randint(high, shape, generator=generator, device="cpu").to(dtype)


def no_shape(spec: str) -> UsageError:
    return UsageError(
        f"nothing tells the input shape of {spec}; pass --input (from Python: input_shape=) with the sizes of one "
        "sample, such as --input 3x224x224, or --input 3x32x32,16:int64 for two inputs"
    )
