"""One model of the zoo, and the makers of its inputs.

Entries are data: listing and filtering the zoo imports neither torchvision, timm nor transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
ZooRow = dict[str, Any]  # the results for one model, as the JSON lines of `zoo --output` hold them
InputMaker = Callable[[int], Inputs]


@dataclass(frozen=True)
class ZooEntry:
    """A named model that can be built any number of times, always with the same weights.

    `heavy` marks models that a small machine should skip: many parameters, or a step of many seconds.

        model, make_inputs = entry.build()
        args, kwargs = make_inputs(2)
        model(*args, **kwargs)
    """

    name: str
    suite: str
    make: Callable[[], tuple[nn.Module, InputMaker]]
    heavy: bool = False

    def build(self) -> tuple[nn.Module, InputMaker]:
        """The model in train mode and its input maker; the caller's random state is not changed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, inputs = self.make()
        return model.train(), inputs


def generator() -> torch.Generator:
    """A fresh stream for inputs: the same batch size always gives the same values."""
    return torch.Generator().manual_seed(1)


def floats(*shape: int) -> InputMaker:
    """One positional float tensor of `batch x shape`."""
    return lambda batch: ((torch.randn(batch, *shape, generator=generator()),), {})


def token_ids(batch: int, length: int = 16, vocab: int = 99) -> torch.Tensor:
    """Token ids that avoid 0, 1 and 2, which the configurations use as padding, start and end."""
    return torch.randint(3, vocab, (batch, length), generator=generator())


def padding_mask(batch: int, length: int = 16) -> torch.Tensor:
    """A mask whose last row is padded: an all-ones mask would be optimised away and prove nothing."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, -3:] = 0
    return mask


def padded_text(batch: int) -> Inputs:
    """Token ids and a padding mask, as a tokenizer gives them."""
    return (token_ids(batch),), {"attention_mask": padding_mask(batch)}


def plain_text(batch: int) -> Inputs:
    """Token ids alone, for models that take no mask or whose masked path needs more than a mask."""
    return (token_ids(batch),), {}


def source_and_target(batch: int) -> Inputs:
    """Inputs of an encoder-decoder; the lengths differ, so that a swapped tensor cannot go unnoticed."""
    return (token_ids(batch),), {"attention_mask": padding_mask(batch), "decoder_input_ids": token_ids(batch, 12)}
