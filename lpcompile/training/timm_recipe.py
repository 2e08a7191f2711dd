"""timm's usual recipe, by the names of its own flags and from its own factories.

    python -m lpcompile train timm:resnet18 --data folder:images/ --opt adamw --lr 1e-3 --sched cosine \\
        --warmup-epochs 1 --mixup 0.2 --cutmix 1 --smoothing 0.1 --aa rand-m9-mstd0.5-inc1 --reprob 0.25 \\
        --model-ema --amp

What is random follows from seed, epoch and sample, as all else in the data: all ranks see the same mixed batches, and
so does a run that goes on in the middle of an epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from lpcompile.core.system.random_state import random_kept
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.runtime.loop.average import Average
from lpcompile.training.images import Images
from lpcompile.training.sampler import seeded

EMA_DECAY = 0.9998  # timm's own default
DRAWS = 10  # of an image's augmentation, until one can be done


@dataclass(frozen=True)
class TimmRecipe:
    """Flags of timm's train.py. None or 0: without it."""

    opt: str | None = None
    sched: str | None = None
    warmup_epochs: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0
    aa: str | None = None
    reprob: float = 0.0
    model_ema: bool = False
    model_ema_decay: float = EMA_DECAY
    amp: bool = False

    def check(self, batch: int, images: bool) -> None:
        """Refuse what timm would fail at, or ignore, before any process is started. batch: of one replica."""
        if self == TimmRecipe(amp=self.amp):
            return
        if find_spec("timm") is None:
            raise UsageError(f"{self.flags()} come from timm, which is not installed: pip install timm")
        if self.of_images() and not images:
            raise UsageError(f"{self.flags(self.of_images())} are for images, and the data are text; leave them out")
        if self.mixes() and batch % 2:
            raise UsageError(f"--mixup, --cutmix and --smoothing take pairs of samples: --batch {batch} must be even")
        if self.opt is not None:
            timms("opt", self.opt, lambda: self.optimizer(0.1, 0.9, 0.0)([nn.Parameter(torch.zeros(2, 2))]))
        if self.sched is not None:
            sgd = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)
            timms("sched", self.sched, lambda: self.scheduler(10, max(2, self.warmup_epochs + 1))(sgd))
        elif self.warmup_epochs:
            raise UsageError("--warmup-epochs has no effect without --sched; give both, or leave it out")
        if self.aa is not None or self.reprob:
            timms("aa", str(self.aa), lambda: Augmentation(self.aa, self.reprob, 32, (0.5,) * 3, (0.5,) * 3, 0).steps)

    def of_images(self) -> dict[str, Any]:
        given = {"mixup": self.mixup, "cutmix": self.cutmix, "smoothing": self.smoothing, "aa": self.aa,
                 "reprob": self.reprob}  # fmt: skip
        return {name: value for name, value in given.items() if value}

    def mixes(self) -> bool:
        return bool(self.mixup or self.cutmix or self.smoothing)

    def flags(self, given: Mapping[str, Any] | None = None) -> str:
        changed = {n: v for n, v in vars(self).items() if v != getattr(TimmRecipe(), n)} if given is None else given
        return ", ".join(f"--{name.replace('_', '-')}" for name in changed)

    def optimizer(
        self, lr: float, momentum: float, weight_decay: float, model: nn.Module | None = None
    ) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
        """Of each rank's parameters; as in timm, biases, norms and what the model names have no weight decay."""
        from timm.optim import create_optimizer_v2

        assert self.opt is not None
        name = self.opt
        listed = _without_decay(model) if model is not None else WeakIdKeyDictionary()

        def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            bare = [p for p in parameters if p.ndim <= 1 or p in listed]
            rest = [p for p in parameters if p.ndim > 1 and p not in listed]
            groups = [{"params": bare, "weight_decay": 0.0}, {"params": rest, "weight_decay": weight_decay}]
            found: torch.optim.Optimizer = create_optimizer_v2(
                [group for group in groups if group["params"]], name, lr=lr, weight_decay=weight_decay,
                momentum=momentum,
            )  # fmt: skip
            return found

        return make

    def scheduler(self, steps_of_epoch: int, epochs: int) -> Callable[[Any], Any]:
        from timm.scheduler import create_scheduler_v2

        def make(optimizer: Any) -> PerStep:
            found, _ = create_scheduler_v2(
                optimizer, self.sched, num_epochs=epochs, warmup_epochs=self.warmup_epochs, step_on_epochs=False,
                updates_per_epoch=steps_of_epoch,
            )  # fmt: skip
            return PerStep(found)

        return make

    def prepared(self, loader: Any, classes: int, seed: int) -> Any:
        """The training loader with this recipe's augmentation and mixing."""
        data = loader.dataset
        if (self.aa or self.reprob) and isinstance(data, Images):
            look = data.look
            if self.aa and look.channels != 3:
                raise UsageError(f"--aa {self.aa} changes colours, and the model takes {look.channels} channel")
            mean, deviation = ((v * look.channels)[: look.channels] for v in (look.mean, look.deviation))
            data.augmentation = Augmentation(self.aa, self.reprob, look.size, mean, deviation, seed)
        return Mixed(loader, self, classes, seed) if self.mixes() else loader


def timms(flag: str, value: str, make: Callable[[], Any]) -> None:
    """Whether timm can make it; a UsageError with timm's own reason if not."""
    try:
        make()
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"--{flag} {value} is refused by timm: {error}") from None


def _without_decay(model: nn.Module) -> Any:
    """Parameters that the model names as such (position embeddings, say), and biases."""
    named: set[str] = getattr(model, "no_weight_decay", set)()
    found: Any = WeakIdKeyDictionary()
    for name, p in model.named_parameters():
        if name in named or name.endswith(".bias"):
            found[p] = True
    return found


def average_of(trainer: Trainer, decay: float) -> Average:
    from timm.utils import ModelEmaV3

    return Average(trainer, lambda stage: ModelEmaV3(stage, decay=decay), lambda ema, stage: ema.update(stage))


class PerStep:
    """A scheduler of timm, which is told the number of updates, as one of torch, which counts them."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.count = scheduler, 0
        self._set()

    def _set(self) -> None:
        if self.scheduler is not None:  # "none"
            self.scheduler.step_update(self.count)

    def step(self) -> None:
        self.count += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "kind": type(self.scheduler).__name__}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self._set()


@dataclass(frozen=True)
class Augmentation:
    """timm's transforms of single images, applied to a batch of them."""

    aa: str | None
    reprob: float
    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    seed: int

    @functools.cached_property
    def steps(self) -> tuple[Any, Any]:
        """Of PIL images, and from there to normalised tensors."""
        from timm.data import create_transform

        _, images, tensors = create_transform(
            self.size, is_training=True, color_jitter=None, auto_augment=self.aa, re_prob=self.reprob,
            re_mode="pixel", mean=self.mean, std=self.deviation, separate=True,
        )  # fmt: skip
        return images, tensors

    def __call__(self, x: Tensor, index: Tensor, epoch: int) -> Tensor:
        """x: uint8 images, cropped and mirrored; index: their numbers in the data set."""
        from torchvision.transforms.v2.functional import to_pil_image

        pairs = zip(x, index.tolist(), strict=True)
        return torch.stack([self._changed(to_pil_image(image), epoch, i) for image, i in pairs])

    def _changed(self, image: Any, epoch: int, i: int) -> Tensor:
        images, tensors = self.steps
        for draw in range(DRAWS):
            with random_kept(seeded(self.seed, epoch, i, draw).initial_seed()):
                try:
                    found: Tensor = tensors(images(image))
                    return found
                except ValueError:  # timm posterizes to 0 bits at times, which Pillow refuses: draw again
                    if draw + 1 == DRAWS:
                        raise
        raise AssertionError


class Mixed:
    """A loader whose batches timm's Mixup has mixed; targets become shares of classes, as its own loss takes them."""

    def __init__(self, loader: Any, recipe: TimmRecipe, classes: int, seed: int) -> None:
        from timm.data import Mixup

        mixes = bool(recipe.mixup or recipe.cutmix)
        self.mixup = Mixup(recipe.mixup, recipe.cutmix, prob=float(mixes), label_smoothing=recipe.smoothing,
                           num_classes=classes)  # fmt: skip
        self.loader, self.seed = loader, seed

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, y, index in self.loader:
            there = x if self.loader.dataset.read else torch.zeros(len(x), 1, *x.shape[-2:])
            with random_kept(seeded(self.seed, self.loader.sampler.epoch, int(index[0]) + 1).initial_seed()):
                mixed, shares = self.mixup(there, y)
            yield (mixed if there is x else x), shares, index
