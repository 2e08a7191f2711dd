"""Images to train on: decoded once and kept as uint8 where they are few, augmented in batches.

What is random follows from seed, epoch and sample, so that all ranks see the same, and a resumed run as well.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lpcompile.errors import UsageError
from lpcompile.training.sampler import EpochSampler, seeded

IN_MEMORY = 2**30  # bytes of decoded images that a rank keeps
CHUNK = 1024  # images that are resized at once


@dataclass(frozen=True)
class ImageFormat:
    """How images become tensors: channels, pixels, mean and deviation, and which augmentations make sense."""

    channels: int
    size: int
    mean: tuple[float, ...] = (0.47,)
    deviation: tuple[float, ...] = (0.25,)
    flip: bool = True
    crops: bool = False  # random crops of many sizes, as for ImageNet; else shifts by up to an eighth

    def normal(self, x: Tensor) -> Tensor:
        """Float images with mean 0 and deviation 1, from uint8 ones."""
        mean, deviation = (torch.tensor(v).view(1, -1, 1, 1) for v in (self.mean, self.deviation))
        return (x.float().div_(255) - mean) / deviation

    def channelled(self, x: Tensor) -> Tensor:
        """Grey images for a model of colours, and the other way round."""
        have = x.shape[-3]
        if have == self.channels:
            return x
        if have == 1:
            return x.expand(*x.shape[:-3], self.channels, *x.shape[-2:])
        if self.channels == 1:
            return x.float().mean(-3, keepdim=True).to(x.dtype)
        raise UsageError(f"the images have {have} channels and the model takes {self.channels}; give another model")


class Images(Dataset[tuple[Tensor, int, int]]):
    """Labelled images. `take` gives several at once, as uint8.

    found: what torchvision reads, with `targets`; or `pixels`, all of them as uint8, where they fit into memory anyway.
    """

    def __init__(
        self,
        look: ImageFormat,
        targets: Any,
        classes: int,
        *,
        found: Any = None,
        pixels: Tensor | None = None,
        seed: int = 0,
        augment: bool = False,
    ) -> None:
        self.look, self.classes, self.found, self.seed, self.augment = look, classes, found, seed, augment
        self.targets = torch.as_tensor(targets, dtype=torch.int64)
        self.augmentation: Any = None  # of uint8 images, to normalised ones: see `timm_recipe`
        self.read = True  # False on ranks whose stage takes no images: they are not decoded
        self.pixels = pixels
        self.kept: Tensor | None = None
        self.have = torch.zeros(len(self.targets), dtype=torch.bool)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def small(self) -> bool:
        """Whether all of them stay in memory once they are decoded."""
        return self.pixels is not None or len(self) * self.look.channels * self.look.size**2 <= IN_MEMORY

    def take(self, index: Tensor) -> Tensor:
        """These images as uint8; decoded or resized the first time that they are asked for."""
        look = self.look
        if self.kept is None:
            self.kept = torch.empty(len(self), look.channels, look.size, look.size, dtype=torch.uint8)
        missing = torch.unique(index[~self.have[index]])
        if len(missing) and self.pixels is not None:
            missing = torch.arange(len(self))
            for some in torch.split(missing, CHUNK):
                self.kept[some] = self._sized(self.pixels[some])
            self.pixels = self.pixels[:0]
        elif len(missing):
            for i in missing.tolist():
                self.kept[i] = self._decoded(i)
        self.have[missing] = True
        return self.kept[index]

    def _decoded(self, i: int) -> Tensor:
        from torchvision.transforms.v2 import functional as v2

        image, _ = self.found[i]
        return self._sized(v2.pil_to_tensor(image))

    def _sized(self, x: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional as v2

        x = self.look.channelled(x)
        if tuple(x.shape[-2:]) == (self.look.size, self.look.size):
            return x
        return torch.as_tensor(v2.resize(x.contiguous(), [self.look.size, self.look.size], antialias=True))

    def batch(self, index: Tensor, epoch: int) -> Tensor:
        """These images, augmented and normalised."""
        x = self.take(index)
        if self.augment:
            x = augmented(x, index, seeded(self.seed, epoch), len(self), self.look.flip)
        return self._normal(x, index, epoch)

    def _normal(self, x: Tensor, index: Tensor, epoch: int) -> Tensor:
        if self.augment and self.augmentation is not None:
            found: Tensor = self.augmentation(x, index, epoch)
            return found
        return self.look.normal(x)

    def __getitem__(self, at: tuple[int, int]) -> tuple[Tensor, int, int]:
        """One image, for data sets that are decoded again in every epoch, by workers of a DataLoader."""
        index, epoch = at
        label, size = int(self.targets[index]), self.look.size
        if not self.read:
            return torch.zeros(1).expand(self.look.channels, size, size), label, index
        if not self.look.crops:
            x = self._decoded(index)[None]
            if self.augment:
                x = augmented(x, torch.zeros(1, dtype=torch.int64), seeded(self.seed, epoch, index), 1, self.look.flip)
            return self._normal(x, torch.tensor([index]), epoch)[0], label, index
        from torchvision.transforms import v2

        image = v2.functional.pil_to_tensor(self.found[index][0])
        steps = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        if not self.augment:
            steps = [v2.Resize(size * 8 // 7, antialias=True), v2.CenterCrop(size)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seeded(self.seed, epoch, index).initial_seed()))
            image = v2.Compose(steps)(image)
        return self._normal(self.look.channelled(image)[None], torch.tensor([index]), epoch)[0], label, index


def augmented(x: Tensor, index: Tensor, draws: torch.Generator, count: int, flip: bool) -> Tensor:
    """Each image shifted by up to an eighth of its size, over zeros, and perhaps mirrored.

    As RandomCrop with padding and RandomHorizontalFlip do, but for a batch at once. Draws are made for all `count`
    samples of the epoch.
    """
    from torchvision.transforms.v2 import functional as v2

    size = x.shape[-1]
    reach = max(1, size // 8)
    shifts = torch.randint(0, 2 * reach + 1, (2, count), generator=draws)[:, index]
    mirror = torch.rand(count, generator=draws)[index] < 0.5 if flip else torch.zeros(len(index), dtype=torch.bool)
    padded = torch.as_tensor(v2.pad(x, [reach]))
    along = torch.arange(size)
    rows = (shifts[0, :, None] + along)[:, None, :, None]
    columns = torch.where(mirror[:, None], along.flip(0), along) + shifts[1, :, None]
    samples = torch.arange(len(index))[:, None, None, None]
    return padded[samples, torch.arange(x.shape[1])[None, :, None, None], rows, columns[:, None, None, :]]


class Batches:
    """A loader of whole batches (x, y, index) from memory; it has `dataset`, `sampler` and a length as a DataLoader."""

    def __init__(self, data: Any, batch: int, sampler: EpochSampler, drop_last: bool) -> None:
        self.dataset, self.batch_size, self.sampler, self.drop_last = data, batch, sampler, drop_last

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor, Tensor]]:
        order, epoch = self.sampler.order(), self.sampler.epoch
        for index in torch.split(order, self.batch_size):
            if len(index) == self.batch_size or not self.drop_last:
                yield self._inputs(index, epoch), self._targets(index, epoch), index

    def _inputs(self, index: Tensor, epoch: int) -> Any:
        data = self.dataset
        if data.read:
            return data.batch(index, epoch)
        return torch.zeros(1).expand(len(index), data.look.channels, data.look.size, data.look.size)

    def _targets(self, index: Tensor, epoch: int) -> Tensor:
        targets: Tensor = self.dataset.targets[index]
        return targets


def folder_of_images(folder: Path, look: ImageFormat, seed: int, augment: bool) -> Images:
    """A folder with a folder of images for each class."""
    try:
        from torchvision.datasets import ImageFolder
    except ImportError:
        raise UsageError("--data FOLDER needs torchvision to read images: pip install torchvision") from None
    try:
        found = ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise UsageError(f"--data: {folder} has no images in a folder for each class: {error}") from None
    return Images(look, found.targets, len(found.classes), found=found, seed=seed, augment=augment)


def digits(train: bool, look: ImageFormat) -> Images:
    """1,797 handwritten digits of 8 px, enlarged; a fifth is held out."""
    pixels, targets = read_digits()
    order = torch.randperm(len(targets), generator=seeded(0))
    held = len(order) // 5
    order = order[held:] if train else order[:held]
    images = pixels[:, None] / 16
    size = (look.size, look.size)
    images = torch.nn.functional.interpolate(images, size, mode="bilinear", align_corners=False)[order]
    return Images(look, targets[order], 10, pixels=(255 * images).round().to(torch.uint8))


def read_digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, 8 x 8 pixels from 0 to 16, and their classes, read from its file.

    Importing scikit-learn brings in scipy and pandas, which takes a rank longer than compiling a small model.
    """
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise UsageError("--data digits needs scikit-learn: pip install scikit-learn, or give a folder of images")
    with gzip.open(Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        rows = torch.tensor([[float(number) for number in line.split(",")] for line in lines], dtype=torch.float32)
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].long()
