"""Your own nn.Module with your own DataLoader, on two processes: validation, checkpoints, resume, early stopping.

    python examples/own_module.py --save run/              # run it again: it goes on where it ended
    python examples/own_module.py --epochs 2 --samples 512

Only the two lines with `lpcompile` differ from a script that trains in one process.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lpcompile


class Spirals(Dataset):
    """Points on three spirals, lifted to 16 dimensions."""

    def __init__(self, count: int, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=draws)
        radius = torch.rand(count, generator=draws)
        angle = 4 * radius + 2.1 * self.labels + 0.1 * torch.randn(count, generator=draws)
        self.points = torch.stack([radius * angle.sin(), radius * angle.cos()], 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([(k * self.points[i]).sin() for k in range(1, 9)]), self.labels[i]


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(16, width), nn.Sequential(*[Layer(width) for _ in range(depth)])
        self.last = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.first(x)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the loader, for each rank")
    parser.add_argument("--save", help="folder for checkpoints")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Net()
    again = args.workers > 0
    train = DataLoader(Spirals(args.samples, 0), 64, shuffle=True, num_workers=args.workers, persistent_workers=again)
    val = DataLoader(Spirals(1000, 1), 250)

    x, _ = next(iter(train))
    program = lpcompile.parallelize(model, K=2, example_inputs=x, cost="flops")
    record = program.fit(
        F.cross_entropy,
        train,
        args.epochs,
        test=val,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-3),
        save=args.save,  # the newest two checkpoints, and in the folder `best` that of the best evaluation
        resume=args.save is not None,
        best="test accuracy" if args.save else None,
        patience=5,
    )
    print(record)
    print(f"the model has the trained weights: {model(x).argmax(1)[:8].tolist()}")


if __name__ == "__main__":
    main()
