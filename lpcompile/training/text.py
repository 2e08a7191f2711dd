"""Text for language models, byte by byte: `--data text:FILE`. The last tenth of the file is held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lpcompile.errors import UsageError
from lpcompile.training.images import Batches
from lpcompile.training.sampler import EpochSampler, seeded

BYTES = 256
HELD_OUT = 10  # one part of so many


class TextData:
    """Pieces of `length` bytes, each with the bytes that follow; where they begin is shifted in every epoch."""

    classes = BYTES

    def __init__(self, data: Tensor, length: int, seed: int = 0, shift: bool = False) -> None:
        self.data, self.length, self.seed, self.shift, self.read = data, length, seed, shift, True
        self.labels = data[:4096]  # what tells this text from another one

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length - (1 if self.shift else 0)

    def pieces(self, index: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        begin = int(torch.randint(self.length, (), generator=seeded(self.seed, epoch))) if self.shift else 0
        at = (begin + index * self.length)[:, None] + torch.arange(self.length)
        return self.data[at].long(), self.data[at + 1].long()


class TextBatches(Batches):
    """Batches (ids, next ids, index); the ids by name where the model takes them so."""

    def __init__(
        self, data: TextData, batch: int, sampler: EpochSampler, drop_last: bool, names: tuple[str, ...]
    ) -> None:
        super().__init__(data, batch, sampler, drop_last)
        self.names = names

    def _inputs(self, index: Tensor, epoch: int) -> Any:
        ids, _ = self.dataset.pieces(index, epoch)
        if not self.names:
            return ids
        return {name: ids if name == "input_ids" else torch.ones_like(ids) for name in self.names}

    def _targets(self, index: Tensor, epoch: int) -> Tensor:
        targets: Tensor = self.dataset.pieces(index, epoch)[1]
        return targets


def text_of(file: str, length: int, seed: int, shift: bool) -> tuple[TextData, TextData]:
    """Training and test pieces of a file."""
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"--data text:{file}: there is no such file; give a file of text, of any language or code")
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) if path.stat().st_size else torch.empty(0)
    held = len(data) // HELD_OUT
    if held <= length:
        raise UsageError(
            f"--data text:{file} has {len(data)} bytes, and a tenth of them must be longer than the {length} that the "
            f"model reads at once; give a longer file, or --input with fewer"
        )
    return TextData(data[:-held], length, seed, shift), TextData(data[-held:], length)


def logits_of(output: Any) -> Tensor:
    """The scores of the next token in what a language model gives."""
    found = output
    if isinstance(output, dict):
        found = output.get("logits")
    elif isinstance(output, (tuple, list)):
        found = output[0]
    elif not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise UsageError(f"--data text: trains models that give scores [batch, length, bytes], not {type(output)}")
    return found


def next_byte_loss(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy of the next byte."""
    return F.cross_entropy(logits_of(output).flatten(0, 1), target.flatten())
