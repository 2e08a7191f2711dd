"""timm's recipe in `train`: every rank sees the same mixed batches, and two ranks train as one does."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

pytest.importorskip("timm")

from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.training.data import loaders
from lpcompile.training.job import Job
from lpcompile.training.timm_recipe import TimmRecipe
from tests.training.image_folders import draw
from tests.training.net_source import net_source

ALL = TimmRecipe(mixup=0.2, cutmix=1.0, smoothing=0.1, aa="rand-m9-mstd0.5-inc1", reprob=0.5)
FLAGS = """--opt adamw --lr 0.01 --sched cosine --warmup-epochs 1 --mixup 0.2 --cutmix 1 --smoothing 0.1
    --aa rand-m9-mstd0.5-inc1 --reprob 0.5 --model-ema --model-ema-decay 0.9 --input 3x16x16 --batch 8 --cost flops"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torchvision")
    return draw(tmp_path_factory.mktemp("images"), 12)


def batches(folder, start=0, read=True, small=True):
    train, _, classes = loaders(f"folder:{folder}", size=16, batch=8, seed=3)
    train.dataset.read = read
    train = ALL.prepared(train, classes, seed=3)
    train.sampler.set_epoch(1, start)
    return list(train)


def test_batches_are_mixed_alike_from_the_middle_of_an_epoch_on_and_where_no_image_is_read(folder):
    whole = batches(folder)
    x, shares, _ = whole[0]
    assert x.shape == (8, 3, 16, 16) and shares.shape == (8, 2) and len(whole) == 3
    assert torch.allclose(shares.sum(1), torch.ones(8)) and (shares > 0.04).all()  # smoothed
    assert any(((s > 0.06) & (s < 0.94)).any() for _, s, _ in whole)  # mixed
    torch.manual_seed(5)
    later, blind = batches(folder, start=8), batches(folder, read=False)
    for a, b in zip(whole[1:], later, strict=True):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(whole, blind, strict=True))


def test_augmentation_is_of_training_images_only_and_leaves_the_random_state_alone(folder):
    state = torch.get_rng_state()
    train, test, classes = loaders(f"folder:{folder}", size=16, batch=8)
    plain, shown = next(iter(train))[0], next(iter(test))[0]
    erased = next(iter(TimmRecipe(reprob=1.0).prepared(train, classes, 0)))[0]
    changed = (plain != erased).flatten(1).float().mean(1)
    assert (changed > 0).all() and (changed < 0.6).all()  # of each image a part
    assert torch.equal(next(iter(test))[0], shown) and torch.equal(torch.get_rng_state(), state)


def test_biases_norms_and_what_the_model_names_have_no_weight_decay():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    model.token = nn.Parameter(torch.zeros(1, 2, 3))
    model.no_weight_decay = lambda: {"token"}
    optimizer = TimmRecipe(opt="lamb").optimizer(0.1, 0.9, 0.05, model)(list(model.parameters()))
    decayed = [p for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]]
    assert type(optimizer).__name__ == "Lamb" and len(decayed) == 1 and decayed[0] is model[0].weight


def test_timms_schedule_rises_falls_and_goes_on():
    def made():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.4)
        return optimizer, TimmRecipe(sched="cosine", warmup_epochs=1).scheduler(5, 4)(optimizer)

    optimizer, scheduler = made()
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert rates[0] < 0.01 and max(rates) > 0.3 and rates.index(max(rates)) == 5 and rates[-1] < 0.01
    other, again = made()
    again.load_state_dict({**scheduler.state_dict(), "count": 7})
    assert other.param_groups[0]["lr"] == rates[7]


@pytest.mark.parametrize(("given", "options", "says"), [
    ({"opt": "addam"}, {}, "--opt addam is refused by timm"), ({"sched": "cosin"}, {}, "--sched cosin is refused by"),
    ({"sched": "plateau"}, {}, "only supports step per epoch"), ({"mixup": 0.2}, {"batch": 7}, "7 must be even"),
    ({"warmup_epochs": 2}, {}, "--warmup-epochs has no effect without --sched"),
    ({"aa": "rnd-m9"}, {}, "--aa rnd-m9 is refused by timm"),
    ({"cutmix": 1.0}, {"method": "penalty-stored"}, "must always look the same; leave out --cutmix"),
])  # fmt: skip
def test_what_timm_cannot_make_is_refused_before_anything_starts(given, options, says):
    with pytest.raises(UsageError, match=says):
        Job("resnet20", timm=TimmRecipe(**given), **options).check()


def test_two_ranks_train_as_one_does_and_go_on_as_an_unbroken_run(folder, tmp_path, capfd, one_thread):
    (tmp_path / "net.py").write_text(net_source(channels=3, classes=2))
    command = ["train", f"{tmp_path}/net.py:build", "--data", f"folder:{folder}", *FLAGS.split(), "--method", "bp"]

    def run(name, K, *more):
        assert main([*command, "-K", str(K), "--save", str(tmp_path / name), "--save-every", "2", *more]) == 0
        return [checkpoint.model_state(tmp_path / name, average) for average in (False, True)]

    one, two = run("one", 1, "--epochs", "2"), run("two", 2, "--epochs", "2")
    assert "ema test accuracy" in capfd.readouterr().out
    for mine, theirs in zip(two, one, strict=True):
        assert all(torch.allclose(mine[name], t, rtol=0, atol=1e-5) for name, t in theirs.items())
    assert not torch.equal(*(state["0.weight"] for state in one))
    for step in checkpoint.all_in(tmp_path / "two")[1:]:  # the newest one: the run ended at step 4
        shutil.rmtree(step)
    again = run("two", 2, "--epochs", "2", "--resume")
    assert all(torch.equal(a[name], t) for a, b in zip(again, two, strict=True) for name, t in b.items())
    assert main(["export", "--ema", str(tmp_path / "two"), str(tmp_path / "ema.safetensors")]) == 0
