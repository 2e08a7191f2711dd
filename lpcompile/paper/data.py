"""Batches of the experiments, with the numbers of their samples.

Images are shifted and mirrored at random, or not at all, or each in a fixed number of views, as stored λ need: λ of
every view is kept, so a view is a sample of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lpcompile.study.config import RunSpec
from lpcompile.study.data import Pair, normalised
from lpcompile.training.sampler import seeded

RANDOM = "random"
VIEW_SEED = 77
Batch = tuple[Tensor, Tensor, Tensor]  # images, classes, sample numbers


def augmented(spec: RunSpec) -> str | int:
    """How the images of a run are varied, as `batches` takes it."""
    found: str | int = spec.entry.options.get("augment", RANDOM)
    return found


def samples_per_epoch(images: int, augment: str | int) -> int:
    """Each image, and each of its fixed views."""
    return images if augment == RANDOM else images * (1 + int(augment))


def batches(train: Pair, epochs: int, batch: int, augment: str | int, seed: int) -> Iterator[Batch]:
    """augment: "random", or the number of fixed views of an image beside itself (the paper's ratio ρ_DA)."""
    x, y = train
    views = 1 if augment == RANDOM else 1 + int(augment)
    g = seeded(seed, 1)
    for _ in range(epochs):
        order = torch.randperm(len(y) * views, generator=g)
        for chosen in torch.split(order[: len(order) - len(order) % batch], batch):
            image, view = chosen // views, chosen % views
            found = normalised(x[image])
            if augment == RANDOM:
                found = moved(found, *draws(len(chosen), found.shape[-1], g))
            elif views > 1:
                found = torch.where((view == 0)[:, None, None, None], found, fixed_view(found, image, view))
            yield found.contiguous(), y[image], chosen


def reach(size: int) -> int:
    """Pixels by which images are shifted at most: 4 of 32, as is usual."""
    return max(1, size // 8)


def draws(count: int, size: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and mirrors of `count` views."""
    top, left = torch.randint(0, 2 * reach(size) + 1, (2, count), generator=g)
    return top, left, torch.rand(count, generator=g) < 0.5


def fixed_view(images: Tensor, image: Tensor, view: Tensor) -> Tensor:
    """View number `view` of each image: the same whenever it is drawn."""
    found = [
        draws(1, images.shape[-1], seeded(VIEW_SEED, i, v)) for i, v in zip(image.tolist(), view.tolist(), strict=True)
    ]
    top, left, mirrored = (torch.cat(parts) for parts in zip(*found, strict=True))
    return moved(images, top, left, mirrored)


def moved(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
    """Shift each image, with zeros around it, and mirror some."""
    count, channels, size, _ = images.shape
    edge = reach(size)
    padded = F.pad(images, (edge,) * 4)
    rows, columns = (start[:, None] + torch.arange(size) for start in (top, left))
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    at = torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[at[0], at[1], rows[:, None, :, None], columns[:, None, None, :]]
