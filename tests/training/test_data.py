"""Data: the same order for everybody, in every epoch another one, and from its middle on where that is asked for."""

from __future__ import annotations

import pytest
import torch

from lpcompile.errors import UsageError
from lpcompile.training.data import EpochSampler, loaders


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
    assert (len(train.dataset), len(test.dataset)) == (1438, 359)


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


def test_a_folder_of_images(folder):
    def epoch(number, start=0):
        train, _, _ = loaders(str(folder), channels=3, size=8, batch=4)
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


def test_what_is_no_data_is_said(folder, tmp_path):
    with pytest.raises(UsageError, match="there is no such folder; give a folder of images, or digits"):
        loaders(str(tmp_path / "none"), channels=3, size=8, batch=4)
    with pytest.raises(UsageError, match="has no images in a folder for each class"):
        loaders(str(tmp_path), channels=3, size=8, batch=4)
    with pytest.raises(UsageError, match="has 12 training samples, fewer than one batch of 64"):
        loaders(str(folder), channels=3, size=8, batch=64)


def test_a_rank_that_takes_no_images_decodes_none(folder, monkeypatch):
    train, _, _ = loaders(str(folder), channels=3, size=8, batch=4)
    whole = list(train)
    train.dataset.read = False
    monkeypatch.setattr(type(train.dataset.found), "__getitem__", lambda *_: pytest.fail("an image was read"))
    for (x, y, index), (blank, same, again) in zip(whole, train, strict=True):
        assert blank.shape == x.shape and not blank.any()
        assert torch.equal(y, same) and torch.equal(index, again)
