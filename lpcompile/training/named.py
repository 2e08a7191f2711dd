"""torchvision's data sets by name: where their files are, how they are fetched, and what to do where they cannot be."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lpcompile.errors import UsageError
from lpcompile.training.images import ImageFormat, Images

PATIENCE = 20.0  # seconds that a server may not answer


@dataclass(frozen=True)
class Named:
    """A data set of torchvision: its class, its statistics, and its files for those who fetch them by hand."""

    kind: str
    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    url: str
    files: tuple[str, ...]
    inside: str  # the folder of the unpacked files, in the folder of the data
    flip: bool = True

    def look(self, channels: int, size: int) -> ImageFormat:
        same = len(self.mean) in (1, channels)
        mean, deviation = (self.mean, self.deviation) if same else ((sum(self.mean) / 3,), (sum(self.deviation) / 3,))
        return ImageFormat(channels, size, mean, deviation, self.flip)


MNIST_FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
               "t10k-labels-idx1-ubyte.gz")  # fmt: skip
NAMED = {
    "cifar10": Named("CIFAR10", 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
                     "https://www.cs.toronto.edu/~kriz/", ("cifar-10-python.tar.gz",), "."),
    "cifar100": Named("CIFAR100", 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
                      "https://www.cs.toronto.edu/~kriz/", ("cifar-100-python.tar.gz",), "."),
    "mnist": Named("MNIST", 28, (0.1307,), (0.3081,), "https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST_FILES,
                   "MNIST/raw", flip=False),
    "fashion-mnist": Named("FashionMNIST", 28, (0.2860,), (0.3530,),
                           "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", MNIST_FILES,
                           "FashionMNIST/raw"),
}  # fmt: skip
IMAGENET_LOOK: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "deviation": (0.229, 0.224, 0.225)}


def default_folder() -> Path:
    """`$LPCOMPILE_DATA`, or data/ in the current folder."""
    return Path(os.environ.get("LPCOMPILE_DATA") or "data")


def fetch(name: str, folder: Path) -> None:
    """Have the files of a data set in the folder: unpack or download them where they are not; one process calls it."""
    for train in (True, False):
        _opened(name, folder, train, download=True)


def images_of(name: str, folder: Path, train: bool, look: ImageFormat, seed: int, augment: bool) -> Images:
    """A data set whose files are there."""
    found = _opened(name, folder, train, download=False)
    pixels = torch.as_tensor(found.data)
    pixels = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
    return Images(look, found.targets, len(found.classes), pixels=pixels, seed=seed, augment=augment)


def _opened(name: str, folder: Path, train: bool, download: bool) -> Any:
    try:
        from torchvision import datasets
    except ImportError:
        raise UsageError(f"--data {name} needs torchvision: pip install torchvision") from None
    known = NAMED[name]
    kind = getattr(datasets, known.kind)
    try:
        return kind(str(folder), train=train, download=False)
    except (RuntimeError, OSError) as error:
        if not download:
            raise UsageError(_missing(name, folder, error)) from None
    before = _folders(folder / known.inside)
    try:
        with _patience(), redirect_stdout(None):
            return kind(str(folder), train=train, download=True)
    except (RuntimeError, OSError, ValueError) as error:
        for made in (path for path in _folders(folder / known.inside) if path not in before):
            with suppress(OSError):  # it is not empty
                made.rmdir()
        raise UsageError(_missing(name, folder, error)) from None


def _folders(path: Path) -> list[Path]:
    """The folder and those above it, as far as they exist; the innermost first."""
    return [each for each in (path, *path.parents) if each.is_dir()]


def _missing(name: str, folder: Path, error: Exception) -> str:
    known = NAMED[name]
    where = folder / known.inside
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"--data {name}: its files are not in {folder.resolve()} and cannot be downloaded ({reason}). Put "
        f"{', '.join(known.files)} from {known.url} into {where.resolve()}, or name the folder that has them: "
        f"--data {name}:DIR"
    )


@contextmanager
def _patience() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
