"""Data: the same order for everybody, in every epoch another one, and from its middle on where that is asked for."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from lpcompile.errors import UsageError
from lpcompile.training import data as data_
from lpcompile.training import named
from lpcompile.training.data import EpochSampler, loaders
from lpcompile.training.images import ImageFormat, augmented, read_digits
from lpcompile.training.sampler import seeded
from lpcompile.training.text import next_byte_loss
from tests.fresh_python import printed


def test_an_epochs_order_follows_from_seed_and_epoch():
    sampler, other = EpochSampler(20, 1, True), EpochSampler(20, 1, True)
    first = list(sampler)
    assert first == list(other) and sorted(i for i, _ in first) == list(range(20))
    sampler.set_epoch(1)
    assert [i for i, _ in sampler] != [i for i, _ in first]
    sampler.set_epoch(0, start=8)
    assert list(sampler) == first[8:]


def test_shards_are_the_parts_of_the_whole_order():
    whole = [i for i, _ in EpochSampler(21, 1, True)]
    shards = [[i for i, _ in EpochSampler(21, 1, True, (r, 2))] for r in range(2)]
    assert shards == [whole[0:20:2], whole[1:20:2]] and all(len(s) == 10 for s in shards)


def test_digits():
    train, test, classes = loaders("digits", channels=3, size=16, batch=64)
    x, y, index = next(iter(train))
    assert classes == 10 and x.shape == (64, 3, 16, 16) and y.dtype == torch.int64 and len(index.unique()) == 64
    assert (len(train.dataset), len(test.dataset)) == (1438, 359) and len(train) == 22 == len(list(train))
    assert train.dataset.kept.dtype == torch.uint8 and abs(float(x.mean())) < 0.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    functional = pytest.importorskip("torchvision.transforms.functional")
    root = tmp_path_factory.mktemp("images")
    for part, count in (("train", 6), ("test", 2)):
        for c in ("cat", "dog"):
            (root / part / c).mkdir(parents=True)
            for i in range(count):
                image = torch.randint(0, 255, (3, 20, 24), dtype=torch.uint8)
                functional.to_pil_image(image).save(root / part / c / f"{i}.png")
    return root


@pytest.mark.parametrize("small", [True, False])
def test_a_folder_of_images(folder, small, monkeypatch):
    monkeypatch.setattr("lpcompile.training.images.IN_MEMORY", 2**30 if small else 0)

    def epoch(number, start=0):
        train, _, _ = loaders(f"folder:{folder}", channels=3, size=8, batch=4)
        train.sampler.set_epoch(number, start)
        return list(train)

    whole = epoch(1)
    assert [x.shape for x, _, _ in whole] == [(4, 3, 8, 8)] * 3
    later = epoch(1, 4)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[2], b[2]) for a, b in zip(whole[1:], later, strict=True))
    samples = [{int(i): x for xs, _, index in epoch(n) for x, i in zip(xs, index, strict=True)} for n in (0, 1)]
    assert any(not torch.equal(samples[0][i], samples[1][i]) for i in samples[0])  # moved and mirrored anew
    _, test, classes = loaders(str(folder), channels=3, size=8, batch=4)
    assert classes == 2 and len(test.dataset) == 4


def test_images_are_decoded_once(folder, monkeypatch):
    train, _, _ = loaders(str(folder), channels=1, size=8, batch=4, augment=False)
    first = {int(i): x for xs, _, index in train for x, i in zip(xs, index, strict=True)}
    monkeypatch.setattr(type(train.dataset.found), "__getitem__", lambda *_: pytest.fail("an image was read"))
    again = {int(i): x for xs, _, index in train for x, i in zip(xs, index, strict=True)}
    assert all(torch.equal(again[i], x) for i, x in first.items()) and first[0].shape == (1, 8, 8)


def test_imagenet_is_cropped_at_random_in_training_only(folder, tmp_path):
    (tmp_path / "train").symlink_to(folder / "train")
    with pytest.raises(UsageError, match=r"must have train/CLASS/\*\.JPEG and val/CLASS/\*\.JPEG in it"):
        data_.check(f"imagenet:{tmp_path}")
    (tmp_path / "val").symlink_to(folder / "test")
    data_.check(f"imagenet:{tmp_path}")
    train, val, classes = loaders(f"imagenet:{tmp_path}", channels=3, size=14, batch=4)
    x, _, _ = next(iter(train))
    (first, *_), (again, *_) = next(iter(val)), next(iter(val))
    assert x.shape == (4, 3, 14, 14) and classes == 2 and torch.equal(first, again)
    train.sampler.set_epoch(1)
    assert not torch.equal(next(iter(train))[0], x)


def test_a_batch_is_augmented_as_its_samples_would_be_alone():
    x = torch.randint(0, 255, (6, 3, 16, 16), dtype=torch.uint8)
    whole = augmented(x, torch.arange(6), seeded(1, 2), 6, True)
    some = torch.tensor([4, 1])
    assert torch.equal(augmented(x[some], some, seeded(1, 2), 6, True), whole[some])
    draws = seeded(1, 2)
    (down, right), mirrored = (
        torch.randint(0, 5, (2, 6), generator=draws)[:, 3],
        torch.rand(6, generator=draws)[3] < 0.5,
    )
    padded = torch.nn.functional.pad(x[3], [2] * 4)[:, down : down + 16, right : right + 16]
    assert torch.equal(whole[3], padded.flip(2) if mirrored else padded)


def write_mnist(raw, count=(40, 20)):
    """The four files of MNIST, packed as they are downloaded, with random content."""
    raw.mkdir(parents=True)
    for part, n in zip(("train", "t10k"), count, strict=True):
        images = bytes(torch.randint(0, 255, (n * 28 * 28,), dtype=torch.uint8).tolist())
        labels = bytes(i % 10 for i in range(n))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">iiii", 2051, n, 28, 28) + images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, n) + labels)


@pytest.mark.parametrize(("name", "inside"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_a_data_set_of_torchvision_by_its_name(name, inside, tmp_path, monkeypatch):
    pytest.importorskip("torchvision")
    monkeypatch.setenv("LPCOMPILE_DATA", str(tmp_path))
    write_mnist(tmp_path / inside / "raw")
    data_.check(name)
    train, test, classes = loaders(name, channels=3, size=32, batch=8)
    x, y, index = next(iter(train))
    assert classes == 10 and x.shape == (8, 3, 32, 32) and torch.equal(y, index % 10)
    assert (len(train.dataset), len(test.dataset)) == (40, 20)
    assert torch.equal(x[:, 0], x[:, 1])  # grey images for a model of colours


def test_files_that_cannot_be_had_are_named_with_their_place(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")

    def offline(self, *args, **kwargs):
        Path(self.raw_folder if hasattr(self, "raw_folder") else self.root).mkdir(parents=True, exist_ok=True)
        raise OSError("<urlopen error [Errno -3] Temporary failure in name resolution>")

    for kind in ("CIFAR10", "MNIST"):
        monkeypatch.setattr(getattr(datasets, kind), "download", offline)
    says = (rf"--data cifar10: its files are not in {tmp_path} and cannot be downloaded \(<urlopen error.*\)\. Put "
            rf"cifar-10-python\.tar\.gz from https://www\.cs\.toronto\.edu/~kriz/ into {tmp_path}, or name the folder "
            rf"that has them: --data cifar10:DIR")  # fmt: skip
    with pytest.raises(UsageError, match=says):
        data_.check(f"cifar10:{tmp_path}")
    with pytest.raises(UsageError, match=rf"t10k-labels-idx1-ubyte\.gz from .* into {tmp_path}/MNIST/raw"):
        data_.check(f"mnist:{tmp_path}")
    assert tmp_path.is_dir() and not any(tmp_path.iterdir())  # nothing is left behind
    assert set(named.NAMED) == {"cifar10", "cifar100", "mnist", "fashion-mnist"}


def test_text_is_read_byte_by_byte(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(range(256)) * 8)
    train, test, classes = loaders(f"text:{file}", size=16, batch=4)
    x, y, _ = next(iter(train))
    assert classes == 256 and x.shape == y.shape == (4, 16) and torch.equal(y[:, :-1], x[:, 1:])
    assert len({int(b[0]) % 16 for (b,) in zip(x, strict=True)}) == 1  # all begin at the epoch's shift
    named_, *_ = loaders(f"text:{file}", size=16, batch=4, names=("input_ids", "attention_mask"))
    inputs, _, _ = next(iter(named_))
    assert torch.equal(inputs["input_ids"], x) and bool(inputs["attention_mask"].all())
    logits = torch.zeros(4, 16, 256)
    assert float(next_byte_loss({"logits": logits}, y)) == pytest.approx(5.545, abs=1e-3)
    assert sum(len(i) for _, _, i in test) == len(test.dataset) == 12
    with pytest.raises(UsageError, match=r"has 2048 bytes, and a tenth of them must be longer than the 300"):
        loaders(f"text:{file}", size=300, batch=4)


def test_what_is_no_data_is_said(folder, tmp_path):
    with pytest.raises(UsageError, match="there is no such folder; give digits, cifar10, "):
        loaders(str(tmp_path / "none"), channels=3, size=8, batch=4)
    with pytest.raises(UsageError, match="has no images in a folder for each class"):
        loaders(str(tmp_path), channels=3, size=8, batch=4)
    with pytest.raises(UsageError, match="has 12 training samples, fewer than one batch of 64"):
        loaders(str(folder), channels=3, size=8, batch=64)
    with pytest.raises(UsageError, match="there is no such file"):
        data_.check("text:none.txt")
    with pytest.raises(UsageError, match="name it, as in imagenet:DIR"):
        data_.check("imagenet:")
    with pytest.raises(UsageError, match="the images have 3 channels and the model takes 4"):
        ImageFormat(4, 8).channelled(torch.zeros(3, 8, 8))


@pytest.mark.parametrize("small", [True, False])
def test_a_rank_that_takes_no_images_decodes_none(folder, small, monkeypatch):
    monkeypatch.setattr("lpcompile.training.images.IN_MEMORY", 2**30 if small else 0)
    train, _, _ = loaders(str(folder), channels=3, size=8, batch=4)
    whole = list(train)
    train.dataset.read = False
    monkeypatch.setattr(type(train.dataset.found), "__getitem__", lambda *_: pytest.fail("an image was read"))
    for (x, y, index), (blank, same, again) in zip(whole, train, strict=True):
        assert blank.shape == x.shape and not blank.any()
        assert torch.equal(y, same) and torch.equal(index, again)


def test_digits_are_those_of_scikit_learn_without_importing_it():
    sklearn = pytest.importorskip("sklearn.datasets")
    found, (pixels, targets) = sklearn.load_digits(), read_digits()
    assert torch.equal(pixels.double(), torch.tensor(found.images)) and torch.equal(targets, torch.tensor(found.target))
    code = "import sys; from lpcompile.training.images import read_digits; read_digits(); print('scipy' in sys.modules)"
    assert printed(code) == "False"
