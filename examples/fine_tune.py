"""Fine-tune a pretrained model in two stages, beside plain fine-tuning: which AuxNets, learning rate and warm-up.

    python examples/fine_tune.py                                 # digits 0-4, then 5-9
    python examples/fine_tune.py --data cifar10/ --seeds 2       # folders of images: half of the classes, then the rest

A ResNet-20 is trained plainly on one half of the classes. It gets a new last layer, and is fine-tuned on few images of
the other half: by plain training, by the default method, and by `penalty`, whose AuxNets must first learn what the
pretrained stages give each other. Stages take turns in this process, with the bits of two processes.
"""

import argparse
import copy
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lpcompile

BATCH, SIZE = 64, 16
Parts = list[tuple[torch.Tensor, torch.Tensor]]  # of each class: images to train on, and to test on


def digit_parts(count: int) -> Parts:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1)
    images = F.interpolate((images - images.mean()) / images.std(), size=SIZE, mode="bilinear")
    classes = [images[torch.tensor(found.target) == c] for c in range(10)]
    return [(x[60:][:count], x[:60]) for x in classes]


def folder_parts(folder: Path, count: int, held_out: int = 300) -> Parts:
    from PIL import Image
    from torchvision.transforms.v2.functional import pil_to_tensor, resize

    def images(part: str, name: str, most: int) -> torch.Tensor:
        files = sorted((folder / part / name).iterdir())[:most]
        found = [resize(pil_to_tensor(Image.open(f).convert("RGB")), [SIZE, SIZE], antialias=True) for f in files]
        return (torch.stack(found).float() / 255 - 0.47) / 0.25

    names = sorted(p.name for p in (folder / "train").iterdir())
    return [(images("train", name, count), images("test", name, held_out)) for name in names]


def sets(parts: Parts, most: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """The training set of some classes, with at most so many images of each, and their test set."""

    def joined(images: list[torch.Tensor]) -> TensorDataset:
        labels = [torch.full((len(x),), c) for c, x in enumerate(images)]
        return TensorDataset(torch.cat(images), torch.cat(labels))

    return joined([train[:most] for train, _ in parts]), joined([test for _, test in parts])


def sgd(lr: float):
    return lambda parameters: torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=5e-4, nesterov=True)


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 300))
    return 100 * right / len(test)


def train(model: nn.Module, data: TensorDataset, epochs: int, lr: float, warmup: int | None, **how) -> None:
    """Train in two stages; in one, by plain training, where `how` names no method."""
    loader = DataLoader(data, BATCH, shuffle=True, drop_last=True)
    steps, K = epochs * len(loader), 2 if how else 1
    program = lpcompile.parallelize(model, K, example_inputs=next(iter(loader))[0], cost="flops", **how)
    trainer = program.trainer(
        F.cross_entropy,
        optimizer=sgd(lr),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps + 1),
        warmup=warmup,
    )
    trainer.fit(loader, epochs)
    if not trainer.method.exact:
        trainer.recalibrate(loader)  # BatchNorm statistics of the stages' real inputs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder with train/CLASS and test/CLASS (default: digits)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--images", type=int, default=1000, help="of each class, for the pretrained model")
    parser.add_argument("--few", type=int, default=100, help="of each class, for fine-tuning")
    parser.add_argument("--epochs", type=int, nargs=2, default=(4, 6), help="of pretraining and of fine-tuning")
    parser.add_argument("--rates", type=float, nargs="+", default=(0.01, 0.03, 0.1), help="learning rates to fine-tune")
    args = parser.parse_args()
    torch.set_num_threads(1)

    parts = folder_parts(args.data, args.images) if args.data else digit_parts(args.images)
    first, first_test = sets(parts[: len(parts) // 2])
    second, second_test = sets(parts[len(parts) // 2 :], args.few)
    steps = args.epochs[1] * (len(second) // BATCH)
    tenth, third = max(1, steps // 10), max(1, steps // 3)
    penalty = {"method": "penalty"}
    ways = {
        "plain": (None, {}),
        "default": (None, {"method": "auto"}),
        "penalty, fresh AuxNets, no warm-up": (0, {**penalty, "aux_init": "fresh"}),
        "penalty, copied AuxNets, no warm-up": (0, {**penalty, "aux_init": "copy"}),
        f"penalty, copied AuxNets, {tenth} exact steps": (tenth, {**penalty, "aux_init": "copy"}),
        f"penalty, copied AuxNets, {third} exact steps": (third, {**penalty, "aux_init": "copy"}),
    }
    found: dict[tuple[str, float], list[float]] = {}
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        model = lpcompile.models.ResNet(20, num_classes=len(parts) // 2)
        train(model, first, args.epochs[0], 0.1, None)
        print(f"seed {seed}: pretrained, {accuracy(model, first_test):.1f} % on its own classes", flush=True)
        model.fc = nn.Linear(model.fc.in_features, len(parts) - len(parts) // 2)
        for name, (warmup, how) in ways.items():
            for lr in args.rates:
                tuned = copy.deepcopy(model)
                torch.manual_seed(seed)
                train(tuned, second, args.epochs[1], lr, warmup, **how)
                found.setdefault((name, lr), []).append(accuracy(tuned, second_test))
                print(f"  {name}, lr {lr:g}: {found[name, lr][-1]:.1f} %", flush=True)
        fresh = lpcompile.models.ResNet(20, num_classes=len(parts) - len(parts) // 2)
        train(fresh, second, args.epochs[1], 0.1, None)
        found.setdefault(("plain, from scratch", 0.1), []).append(accuracy(fresh, second_test))

    print(f"\n| {steps} steps on {len(second)} images | " + " | ".join(f"lr {lr:g}" for lr in args.rates) + " |")
    print("| --- |" + " --- |" * len(args.rates))
    for name in dict.fromkeys(name for name, _ in found):
        cells = [", ".join(f"{v:.1f}" for v in found.get((name, lr), [])) for lr in args.rates]
        print(f"| {name} | " + " | ".join(f"{cell} %" if cell else "" for cell in cells) + " |")
    means = {key: statistics.mean(values) for key, values in found.items()}
    for kind in ("plain", "default", "penalty"):
        name, lr = max((key for key in means if key[0].split(",")[0] == kind), key=means.__getitem__)
        print(f"best of {kind}: {means[name, lr]:.1f} % ({name}, lr {lr:g})")


if __name__ == "__main__":
    main()
