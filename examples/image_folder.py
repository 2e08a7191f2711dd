"""A model of timm or torchvision on a folder of images, on two processes: validation, checkpoints, resume.

    python examples/image_folder.py timm:resnet18 images/ --size 96 --save run/
    python examples/image_folder.py                    # a small model on images that the script draws

The folder has train/CLASS/*.jpg and val/CLASS/*.jpg. The same from the command line, without a script:

    python -m lpcompile train timm:resnet18 --arg num_classes=3 --data folder:images/ -K 2 --size 96 --save run/
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.training.data import loaders


def draw(folder: Path, count: int, size: int = 32) -> None:
    """Images of three classes: stripes down, stripes across, and a blob."""
    from torchvision.utils import save_image

    draws = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    for part, n in (("train", count), ("val", count // 4)):
        for i in range(n):
            a, b = torch.rand(2, generator=draws).tolist()
            shapes = {"down": (9 * x + 6 * a).sin(), "across": (9 * y + 6 * a).sin(),
                      "blob": 2 * (-8 * ((x - a + 0.5) ** 2 + (y - b + 0.5) ** 2)).exp() - 1}  # fmt: skip
            for name, values in shapes.items():
                (folder / part / name).mkdir(parents=True, exist_ok=True)
                noise = 0.2 * torch.randn(3, size, size, generator=draws)
                save_image((values / 2 + 0.5 + noise).clamp(0, 1), folder / part / name / f"{i}.png")


def make(name: str, classes: int) -> torch.nn.Module:
    source, _, rest = name.partition(":")
    if source == "timm":
        import timm

        return timm.create_model(rest, num_classes=classes)
    if source == "torchvision":
        import torchvision

        return torchvision.models.get_model(rest, num_classes=classes)
    return lpcompile.models.ResNet(20, width=8, num_classes=classes)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="small", help="timm:NAME, torchvision:NAME or small (default)")
    parser.add_argument("folder", nargs="?", help="train/CLASS/... and val/CLASS/...; default: images drawn for you")
    parser.add_argument("--size", type=int, default=32, help="pixels")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=64, help="images of each class that are drawn")
    parser.add_argument("--save", help="folder for checkpoints; a run that ended early goes on from there")
    args = parser.parse_args()

    folder = Path(args.folder) if args.folder else Path(tempfile.gettempdir()) / f"lpcompile-shapes-{os.getuid()}"
    if not args.folder and not folder.is_dir():
        draw(folder, args.images)

    torch.manual_seed(0)
    train, val, classes = loaders(f"folder:{folder}", size=args.size, batch=args.batch)
    model = make(args.model, classes)
    x = next(iter(train))[0]
    program = lpcompile.parallelize(model, K=2, example_inputs=x, cost="flops")
    record = program.fit(
        F.cross_entropy,
        train,
        args.epochs,
        test=val,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-4),
        save=args.save,
        save_every=len(train) if args.save else 0,
        resume=args.save is not None,
    )
    print(record)


if __name__ == "__main__":
    main()
