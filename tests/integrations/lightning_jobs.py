"""Small LightningModules, and what their ranks do."""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.small import Block


class Classifier(lightning.LightningModule):
    """Calls `self.model(x)`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        blocks = [Block(dtype=torch.float32) for _ in range(4)]
        self.model = nn.Sequential(*blocks, nn.Linear(6, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self.model(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_accuracy", (out.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Whole(Classifier):
    """Calls `self(x)`."""

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self(x), y)}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))


class TwoParts(Classifier):
    """Calls two modules."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.head(self.model(x)), y)


def data(count=36, seed=1):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 6, generator=g), torch.randint(3, (count,), generator=g))


def fitted(module, folder, strategy="auto", devices=1, ckpt=None, epochs=2, **options):
    """Weights and metrics after training, and the checkpoint."""
    torch.manual_seed(3)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, max_epochs=epochs, default_root_dir=str(folder),
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        logger=lightning.pytorch.loggers.CSVLogger(str(folder)), **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), 8), DataLoader(data(10, 2), 4), ckpt_path=ckpt)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {n: t.clone() for n, t in module.state_dict().items()}, metrics, trainer.checkpoint_callback.best_model_path


def on_ranks(folder):
    from lpcompile.errors import UsageError
    from lpcompile.integrations.lightning import LayerParallelStrategy

    def ours():
        return LayerParallelStrategy(K=2, cost="flops")

    found = {}
    found["plain"] = fitted(Classifier(), f"{folder}/a", ours(), 2)
    found["clipped"] = fitted(Whole(), f"{folder}/b", ours(), 2, gradient_clip_val=0.1, accumulate_grad_batches=2)
    found["half"] = fitted(Classifier(), f"{folder}/c", ours(), 2, epochs=1)
    found["resumed"] = fitted(Classifier(), f"{folder}/c", ours(), 2, ckpt=found["half"][2])
    try:
        fitted(TwoParts(), f"{folder}/d", ours(), 2)
    except UsageError as error:
        found["refused"] = str(error)
    return found
