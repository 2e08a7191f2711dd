"""Images to train on: a folder of them, or scikit-learn's digits, which need no download.

    train, test = loaders("digits", channels=3, size=16, batch=64)
    for x, y, index in train: ...

The seed and the epoch's number determine the samples of an epoch, their order and augmentation: all ranks see the same,
and so does a run that is resumed in the middle of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lpcompile.errors import UsageError

HELD_OUT = ("test", "val", "valid", "validation")


class EpochSampler(Sampler[tuple[int, int]]):
    """Sample numbers with their epoch, shuffled by seed and epoch; `set_epoch(e, start)` skips the first ones.

    shard: (this, of) takes every `of`-th sample of each batch, for replicas.
    """

    def __init__(self, count: int, seed: int, shuffle: bool, shard: tuple[int, int] = (0, 1)) -> None:
        self.count, self.seed, self.shuffle, self.shard = count, seed, shuffle, shard
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """start: samples of this sampler (after sharding) to skip."""
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = torch.arange(self.count)
        if self.shuffle:
            order = torch.randperm(self.count, generator=seeded(self.seed, self.epoch))
        this, of = self.shard
        for i in order[this : len(order) - len(order) % of : of].tolist()[self.start :]:
            yield int(i), self.epoch

    def __len__(self) -> int:
        return self.count // self.shard[1]


def seeded(*numbers: int) -> torch.Generator:
    """A generator seeded by these numbers."""
    state = 0
    for n in numbers:
        state = (state * 1_000_003 + n + 1) % 2**62
    return torch.Generator().manual_seed(state)


class Digits(Dataset[tuple[Tensor, int, int]]):
    """1,797 handwritten digits of 8 px, enlarged; a fifth is held out."""

    def __init__(self, train: bool, channels: int, size: int) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise UsageError(
                "--data digits needs scikit-learn: pip install scikit-learn, or give a folder of images"
            ) from None
        found = load_digits()
        images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
        images = torch.nn.functional.interpolate(images, (size, size), mode="bilinear", align_corners=False)
        order = torch.randperm(len(images), generator=seeded(0))
        held = len(images) // 5
        order = order[held:] if train else order[:held]
        self.x = ((images[order] - 0.3) / 0.35).repeat(1, channels, 1, 1)
        self.y = torch.tensor(found.target)[order]
        self.classes = 10

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: tuple[int, int]) -> tuple[Tensor, int, int]:
        return self.x[at[0]], int(self.y[at[0]]), at[0]


class Images(Dataset[tuple[Tensor, int, int]]):
    """A folder with a folder of images for each class. Training images are shifted and mirrored, by seed and epoch."""

    def __init__(self, folder: Path, channels: int, size: int, seed: int, augment: bool) -> None:
        try:
            from torchvision.datasets import ImageFolder
            from torchvision.transforms import functional
        except ImportError:
            raise UsageError("--data FOLDER needs torchvision to read images: pip install torchvision") from None
        try:
            self.found = ImageFolder(str(folder))
        except FileNotFoundError as error:
            raise UsageError(f"--data: {folder} has no images in a folder for each class: {error}") from None
        self.functional: Any = functional
        self.channels, self.size, self.seed, self.augment = channels, size, seed, augment
        self.classes = len(self.found.classes)
        self.read = True  # False on ranks whose stage takes no images: they are not decoded

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, at: tuple[int, int]) -> tuple[Tensor, int, int]:
        index, epoch = at
        if not self.read:
            return torch.zeros(1).expand(self.channels, self.size, self.size), self.found.targets[index], index
        image, label = self.found[index]
        f = self.functional
        image = f.resize(f.convert_image_dtype(f.pil_to_tensor(image)), [self.size, self.size], antialias=True)
        x = ((image - 0.47) / 0.25)[: self.channels].expand(self.channels, -1, -1)
        if self.augment:
            g = seeded(self.seed, epoch, index)
            reach = max(1, self.size // 8)
            top, left = torch.randint(0, 2 * reach + 1, (2,), generator=g).tolist()
            x = f.crop(f.pad(x, [reach]), top, left, self.size, self.size)
            x = x.flip(2) if float(torch.rand((), generator=g)) < 0.5 else x
        return x.contiguous(), int(label), index


def loaders(
    source: str,
    *,
    channels: int,
    size: int,
    batch: int,
    seed: int = 0,
    workers: int = 0,
    shard: tuple[int, int] = (0, 1),
    augment: bool = True,
    pinned: bool = False,
) -> tuple[DataLoader[Any], DataLoader[Any] | None, int]:
    """Training batches, test batches (or None), and the number of classes.

    source: "digits", or a folder with `train` and `test` (or `val`) in it, or with the classes themselves.
    batch: samples of one replica. A smaller last batch of an epoch is dropped.
    pinned: in page-locked memory, for asynchronous copies to a GPU.
    """
    train: Any
    test: Any = None
    if source == "digits":
        train, test = Digits(True, channels, size), Digits(False, channels, size)
    else:
        root = Path(source)
        if not root.is_dir():
            raise UsageError(f"--data {source}: there is no such folder; give a folder of images, or digits")
        inner = root / "train" if (root / "train").is_dir() else root
        train = Images(inner, channels, size, seed, augment)
        held = next((root / name for name in HELD_OUT if (root / name).is_dir()), None)
        test = Images(held, channels, size, seed, False) if held is not None and inner != root else None
    if len(train) < batch * shard[1]:
        raise UsageError(f"--data {source} has {len(train)} training samples, fewer than one batch of {batch}")
    sampler = EpochSampler(len(train), seed, True, shard)
    options: dict[str, Any] = {"num_workers": workers, "generator": torch.Generator(), "pin_memory": pinned}
    first: DataLoader[Any] = DataLoader(train, batch, sampler=sampler, drop_last=True, **options)
    second: DataLoader[Any] | None = None
    if test is not None:
        second = DataLoader(test, 4 * batch, sampler=EpochSampler(len(test), seed, False), **options)
    return first, second, train.classes
