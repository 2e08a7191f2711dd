"""A row of the table: a model of a library by the path of its constructor, its arguments, and its inputs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lpcompile.zoo.entry import InputMaker, Inputs, ZooEntry, generator


@dataclass(frozen=True)
class Row:
    """`path` is `module:name`; the first part of the module is the library."""

    name: str
    path: str
    inputs: InputMaker
    options: dict[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    builds: str = ""  # the library whose model it is, where the constructor is a function of our own

    @property
    def library(self) -> str:
        return self.builds or self.path.partition(":")[0].partition(".")[0]


def entry(row: Row) -> ZooEntry:
    def make() -> tuple[nn.Module, InputMaker]:
        module, _, name = row.path.partition(":")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found(*row.args, **row.options), row.inputs

    return ZooEntry(f"strangers:{row.library}/{row.name}", "strangers", make)


def ids(*shape: int, top: int = 64) -> InputMaker:
    """One positional tensor of integers below `top`."""
    return lambda batch: ((torch.randint(0, top, (batch, *shape), generator=generator()),), {})


def images(batch: int, size: int = 64) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=generator())


def with_steps(channels: int, size: int) -> InputMaker:
    """Images and their diffusion time steps."""
    return lambda batch: (
        (torch.randn(batch, channels, size, size, generator=generator()), torch.arange(batch) % 10 + 3),
        {},
    )


def graph(batch: int, features: int = 8) -> Inputs:
    """A ring of nodes with features, as torch_geometric takes it: the first dimension counts nodes, not samples."""
    nodes = 9
    ring = torch.arange(nodes)
    edges = torch.stack([torch.cat([ring, (ring + 1) % nodes]), torch.cat([(ring + 1) % nodes, ring])])
    return (torch.randn(nodes, features, generator=generator()) * batch, edges), {}


def table_row(categories: tuple[int, ...], numbers: int, categories_first: bool = True) -> InputMaker:
    """Categories and numbers of a row of a table."""

    def make(batch: int) -> Inputs:
        stream = generator()
        chosen = torch.stack([torch.randint(0, c, (batch,), generator=stream) for c in categories], 1)
        values = torch.randn(batch, numbers, generator=stream)
        return ((chosen, values) if categories_first else (values, chosen)), {}

    return make
