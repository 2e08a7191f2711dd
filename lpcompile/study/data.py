"""The data of a study in memory: training, validation and test samples, and the batches of a run.

Training samples are put in one fixed order. Runs train on the first `images` of them; the last `validation` are held
out of training, for what is tuned and for accuracy over epochs. The test set is read for final figures only.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lpcompile.core.system.atomic_file import replaced
from lpcompile.errors import UsageError
from lpcompile.study.networks import CLASSES, CONTEXT
from lpcompile.training.data import check, loaders, parts
from lpcompile.training.sampler import seeded

MEAN, DEVIATION = 0.47, 0.25  # of images, as in `training.data`
SHIFT = 2  # pixels by which training images are moved at most
PIECES = 2048  # pieces of text for validation, and for the test

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Samples:
    """Inputs and targets; images are bytes."""

    train: Pair
    validation: Pair
    test: Pair


def data_name(source: str) -> str:
    """What a record calls its data: the same wherever they lie. Folders of images end with a slash."""
    kind, where = parts(source)
    return f"{where.resolve().name}/" if kind == "folder" else kind


def images_file(folder: Path, data: str, size: int) -> Path:
    """Decoded images of a data set, kept beside the results: decoding takes longer than a short run."""
    return folder / "cache" / f"{data_name(data).rstrip('/')}-{size}px.safetensors"


def decode(folder: Path, data: str, size: int, most: int = CLASSES) -> None:
    """Make that file, if it is not there: training and test images, each in one fixed random order. most: classes that
    the networks can tell apart."""
    file = images_file(folder, data, size)
    if file.exists():
        return
    kind = parts(data)[0]
    if kind in ("text", "imagenet"):
        raise UsageError(f"--data {data}: a study trains on small images; give digits, cifar10 or a folder of images")
    check(data)
    found: dict[str, Tensor] = {}
    train, test, classes = loaders(data, size=size, batch=1, augment=False)
    if test is None:
        raise UsageError(f"--data {data} has no test images; give a folder with train/CLASS and test/CLASS")
    if classes > most:
        raise UsageError(f"--data {data} has {classes} classes; the networks tell {most} apart")
    for part, loader in (("train", train), ("test", test)):
        images: Any = loader.dataset
        order = torch.randperm(len(images), generator=seeded(0))
        found |= {f"{part} x": images.take(order), f"{part} y": images.targets[order]}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced(file) as beside:
        save_file(found, beside)


def image_count(folder: Path, data: str, size: int) -> int:
    """Training images of the decoded file."""
    with safe_open(images_file(folder, data, size), framework="pt") as file:
        found: int = file.get_slice("train y").get_shape()[0]
    return found


def check_count(folder: Path, data: str, size: int, images: int, held: int) -> None:
    """Refuse to train on, and to hold out, more images than there are."""
    have = image_count(folder, data, size)
    if images + held > have:
        raise UsageError(
            f"--data {data} has {have} training images, fewer than images = {images} and validation = {held} together; "
            f"ask for fewer (--images, --validation)"
        )


@functools.lru_cache(maxsize=2)
def image_samples(folder: Path, data: str, size: int, held: int) -> Samples:
    found = load_file(images_file(folder, data, size))
    train, test = ((found[f"{part} x"], found[f"{part} y"]) for part in ("train", "test"))
    return Samples((train[0][:-held], train[1][:-held]), (train[0][-held:], train[1][-held:]), test)


@functools.lru_cache(maxsize=1)
def text_samples() -> Samples:
    """Python's own library as bytes, a corpus that every machine has: the last tenths for validation and test."""
    files = sorted(Path(os.__file__).parent.glob("[a-z]*.py"))
    text = torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8).long()
    cuts = [0, len(text) * 8 // 10, len(text) * 9 // 10, len(text)]
    train, validation, test = (text[a:b] for a, b in pairwise(cuts))
    return Samples((train, train[:0]), pieces(validation, PIECES, seeded(0)), pieces(test, PIECES, seeded(1)))


def pieces(text: Tensor, count: int, generator: torch.Generator) -> Pair:
    """Pieces of text from random places, each with the same piece one byte on."""
    at = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator)
    found = torch.stack([text[i : i + CONTEXT + 1] for i in at.tolist()])
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def normalised(x: Tensor) -> Tensor:
    """Images as a model takes them; ids as they are."""
    return (x.float() / 255 - MEAN) / DEVIATION if x.dtype == torch.uint8 else x


def image_batches(train: Pair, steps: int, batch: int, generator: torch.Generator, mirror: bool) -> Iterator[Pair]:
    """Shuffled batches, moved by up to two pixels and, but for digits, mirrored at random."""
    x, y = train
    size, per_epoch = x.shape[-1], len(y) // batch
    order = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(y), generator=generator)
        chosen = order[step % per_epoch * batch :][:batch]
        found = normalised(x[chosen])
        if mirror:
            turned = torch.rand(len(chosen), generator=generator) < 0.5
            found = torch.where(turned[:, None, None, None], found.flip(-1), found)
        top, left = torch.randint(0, 2 * SHIFT + 1, (2,), generator=generator).tolist()
        yield F.pad(found, (SHIFT,) * 4)[:, :, top : top + size, left : left + size].contiguous(), y[chosen]


def text_batches(train: Pair, steps: int, batch: int, generator: torch.Generator) -> Iterator[Pair]:
    for _ in range(steps):
        yield pieces(train[0], batch, generator)
