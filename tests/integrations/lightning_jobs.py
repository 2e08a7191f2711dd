"""Small LightningModules, and what their ranks do."""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
import torchmetrics
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


class Measured(Classifier):
    """Has metrics of torchmetrics, logged as they are, and in a hook of its own."""

    def __init__(self):
        super().__init__()
        self.right = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.mean, self.val_mean = torchmetrics.MeanMetric(), torchmetrics.SumMetric()

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.model(x)
        loss = F.cross_entropy(out, y)
        self.right(out, y)
        self.log("right", self.right, on_step=False, on_epoch=True)
        self.mean.update(loss.detach(), len(x))
        return loss

    def on_train_epoch_end(self):
        self.log("mean", self.mean.compute())
        self.mean.reset()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_mean.update(F.cross_entropy(self.model(x), y))
        self.log("val_sum", self.val_mean)


class Denoiser(Classifier):
    """Its model gives back what it is given, so that the loss is 0 if it looks at the numbers that the model saw."""

    def __init__(self):
        super().__init__()
        for p in self.model.parameters():
            nn.init.zeros_(p)
        self.model[-1] = nn.Linear(6, 6)
        nn.init.eye_(self.model[-1].weight)
        nn.init.zeros_(self.model[-1].bias)

    def training_step(self, batch, batch_idx):
        noise = torch.randn_like(batch[0])
        loss = F.mse_loss(self.model(batch[0] + noise) - noise, batch[0])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


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
    found["measured"] = fitted(Measured(), f"{folder}/e", ours(), 2)
    found["denoised"] = fitted(Denoiser(), f"{folder}/f", ours(), 2)
    averages = lightning.pytorch.callbacks.StochasticWeightAveraging(0.01)
    for name, module, options in (("refused", TwoParts(), {}), ("averages", Classifier(), {"callbacks": [averages]})):
        try:
            fitted(module, f"{folder}/{name}", ours(), 2, **options)
        except UsageError as error:
            found[name] = str(error)
    return found
