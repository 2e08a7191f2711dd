"""A LightningModule on two processes: validation, checkpoints, resume. Only the strategy is lpcompile's.

python examples/lightning_module.py --save run/        # run it again with more --epochs: it goes on
"""

import argparse
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lpcompile.integrations.lightning import LayerParallelStrategy


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


class Classifier(lightning.LightningModule):
    """`training_step` calls one module once, and computes the loss from what it gives."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(8, width), *[Block(width) for _ in range(6)], nn.Linear(width, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self.model(x)
        self.log("val_loss", F.cross_entropy(out, y), prog_bar=True)
        self.log("val_accuracy", (out.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 3e-3)


def points(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0).long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--save", default="lightning-run", help="folder for checkpoints and logs")
    args = parser.parse_args()

    lightning.seed_everything(0)
    last = Path(args.save) / "last.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=LayerParallelStrategy(K=2, cost="flops"),
        max_epochs=args.epochs,
        logger=CSVLogger(args.save),
        callbacks=[
            ModelCheckpoint(args.save, "best", monitor="val_accuracy", mode="max", save_last=True),
            EarlyStopping("val_loss", patience=5),
        ],
        enable_progress_bar=False,
    )
    trainer.fit(
        Classifier(),
        DataLoader(points(args.samples, 0), 64, shuffle=True),
        DataLoader(points(512, 1), 256),
        ckpt_path=str(last) if last.is_file() else None,
    )
    if trainer.is_global_zero:
        shown = ", ".join(f"{name} {float(value):.3f}" for name, value in sorted(trainer.callback_metrics.items()))
        print(f"epoch {trainer.current_epoch}: {shown}")


if __name__ == "__main__":
    main()
