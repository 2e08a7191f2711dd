"""Data to train on, by name: torchvision's data sets, folders of images, text, or digits, which need no download.

    train, test, classes = loaders("cifar10", channels=3, size=32, batch=64)
    for x, y, index in train: ...

The seed and the epoch's number determine the samples of an epoch, their order and augmentation: all ranks see the same,
and so does a run that is resumed in the middle of an epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from lpcompile.errors import UsageError
from lpcompile.training.images import Batches, ImageFormat, Images, digits, folder_of_images
from lpcompile.training.named import IMAGENET_LOOK, NAMED, default_folder, fetch, images_of
from lpcompile.training.sampler import EpochSampler
from lpcompile.training.text import TextBatches, text_of

HELD_OUT = ("test", "val", "valid", "validation")
DIGITS_LOOK: dict[str, Any] = {"mean": (0.3,), "deviation": (0.35,), "flip": False}
KINDS = "digits, cifar10, cifar100, mnist, fashion-mnist, imagenet:DIR, folder:DIR, text:FILE, or a folder of images"
Loader = DataLoader[Any] | Batches


def parts(source: str) -> tuple[str, Path]:
    """The kind of a source and its folder or file: "folder" where only a path is given."""
    kind, colon, where = source.partition(":")
    if kind in NAMED:
        return kind, Path(where) if where else default_folder()
    if kind in ("imagenet", "folder", "text") and colon:
        if not where:
            raise UsageError(f"--data {source}: name it, as in {kind}:{'FILE' if kind == 'text' else 'DIR'}")
        return kind, Path(where)
    return (source, Path()) if source == "digits" else ("folder", Path(source))


def check(source: str, *, may_fetch: bool = True) -> None:
    """Refuse data that are not there, before any process is started; fetch those that can be."""
    kind, where = parts(source)
    if kind == "text":
        if not where.is_file():
            raise UsageError(f"--data {source}: there is no such file; give a file of text, of any language or code")
    elif kind in NAMED:
        if may_fetch:
            fetch(kind, where)
    elif kind != "digits" and not where.is_dir():
        raise UsageError(f"--data {source}: there is no such folder; give {KINDS}")
    elif kind == "imagenet" and not ((where / "train").is_dir() and (where / "val").is_dir()):
        raise UsageError(f"--data {source}: {where} must have train/CLASS/*.JPEG and val/CLASS/*.JPEG in it")


def loaders(
    source: str,
    *,
    channels: int = 3,
    size: int = 32,
    batch: int,
    seed: int = 0,
    workers: int = 0,
    shard: tuple[int, int] = (0, 1),
    augment: bool = True,
    pinned: bool = False,
    names: tuple[str, ...] = (),
) -> tuple[Loader, Loader | None, int]:
    """Training batches, test batches (or None), and the number of classes.

    source: see KINDS; a folder has `train` and `test` (or `val`) in it, or the classes themselves.
    size: pixels of images; bytes of a piece of text. names: of a language model's inputs, where it takes them by name.
    batch: samples of one replica. A smaller last batch of an epoch is dropped.
    workers: processes that decode images which do not fit into memory. pinned: in page-locked memory, for asynchronous
    copies to a GPU.
    """
    train, test = _sets(source, channels, size, seed, augment)
    if len(train) < batch * shard[1]:
        raise UsageError(f"--data {source} has {len(train)} training samples, fewer than one batch of {batch}")
    options: dict[str, Any] = {"workers": workers, "pinned": pinned, "names": names}
    first = _loader(train, batch, EpochSampler(len(train), seed, True, shard), True, **options)
    if test is None:
        return first, None, train.classes
    return first, _loader(test, 4 * batch, EpochSampler(len(test), seed, False), False, **options), train.classes


def _sets(source: str, channels: int, size: int, seed: int, augment: bool) -> tuple[Any, Any]:
    kind, where = parts(source)
    if kind == "text":
        return text_of(str(where), size, seed, augment)
    if kind == "digits":
        look = ImageFormat(channels, size, **DIGITS_LOOK)
        return digits(True, look), digits(False, look)
    if kind in NAMED:
        look = NAMED[kind].look(channels, size)
        first = images_of(kind, where, True, look, seed, augment)
        return first, images_of(kind, where, False, look, seed, False)
    check(source)
    look = (
        ImageFormat(channels, size, **IMAGENET_LOOK, crops=True) if kind == "imagenet" else ImageFormat(channels, size)
    )
    inner = where / "train" if (where / "train").is_dir() else where
    train = folder_of_images(inner, look, seed, augment)
    held = next((where / name for name in HELD_OUT if (where / name).is_dir()), None)
    return train, folder_of_images(held, look, seed, False) if held is not None and inner != where else None


def _loader(
    data: Any, batch: int, sampler: EpochSampler, drop_last: bool, *, workers: int, pinned: bool, names: tuple[str, ...]
) -> Loader:
    if not isinstance(data, Images):
        return TextBatches(data, batch, sampler, drop_last, names)
    if data.small and not data.look.crops:
        return Batches(data, batch, sampler, drop_last)
    return DataLoader(
        data, batch, sampler=sampler, drop_last=drop_last, num_workers=workers, persistent_workers=workers > 0,
        generator=torch.Generator(), pin_memory=pinned,
    )  # fmt: skip
