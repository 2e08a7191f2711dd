"""The default method, `penalty` and `multiplier` with default settings on four model families, beside plain training.

    python examples/families.py [FAMILY ...]        # resnet, preact, vit, gpt; minutes each

In one process. Small models on scikit-learn's digits; the GPT predicts the next pixel. One seed. "Through AuxNets" is
the path that training takes; where its figures differ from the model's, the stages do not fit together.
"""

import sys

import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.core.tables import table
from lpcompile.models import GPT, ResNet, VisionTransformer
from lpcompile.runtime.methods import get_method
from lpcompile.training.data import loaders

EPOCHS, BATCH, LEVELS = 10, 64, 17


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 2e-3, weight_decay=0.05)


FAMILIES = {
    "resnet": (lambda: ResNet(20, width=8), sgd),
    "preact": (lpcompile.models.preact_resnet20, sgd),
    "vit": (lambda: VisionTransformer(16, 4, dim=64, depth=8, heads=4, num_classes=10), adamw),
    "gpt": (lambda: GPT(vocabulary=LEVELS, context=64, dim=64, depth=8, heads=4), adamw),
}


class Pixels:
    """Digits as sequences of grey levels."""

    def __init__(self, loader):
        self.loader, self.sampler = loader, loader.sampler

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for x, _, index in self.loader:
            levels = ((x[:, 0] * 0.35 + 0.3) * 16).round().clamp(0, LEVELS - 1).long().flatten(1)
            yield levels, levels, index


def next_pixel(output, levels):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), levels[:, 1:].flatten())


def train(family, method, K):
    """Loss and accuracy of the model, the same through its AuxNets, and the largest violation at the end."""
    torch.manual_seed(0)
    make, optimizer = FAMILIES[family]
    train, test, _ = loaders("digits", channels=3, size=8 if family == "gpt" else 16, batch=BATCH)
    if family == "gpt":
        train, test = Pixels(train), Pixels(test)
    x, steps = next(iter(train))[0], EPOCHS * len(train)
    auxnets = get_method(method).aux == "auxnet"
    init = "consistent" if auxnets else None
    program = lpcompile.parallelize(make(), K, example_inputs=x, method=method, cost="flops", init=init, gate=False)
    trainer = program.trainer(
        next_pixel if family == "gpt" else F.cross_entropy,
        optimizer=optimizer,
        scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, o.param_groups[0]["lr"], steps + 1, cycle_momentum=False, pct_start=0.2
        ),
        total_steps=steps,
    )
    metrics = trainer.fit(train, EPOCHS)
    if auxnets:
        trainer.recalibrate(train)
    found = trainer.evaluate(test, aux=auxnets)
    worst = max((v for name, v in metrics.items() if name.startswith("violation")), default=0.0)
    return [found["loss"], found.get("accuracy"), found.get("aux loss"), found.get("aux accuracy"), worst]


def main():
    torch.set_num_threads(1)
    rows = []
    for family in sys.argv[1:] or FAMILIES:
        methods = [("bp", 2), *((method, K) for method in ("auto", "penalty", "multiplier") for K in (2, 4))]
        for method, K in methods:
            numbers = ["" if v is None else f"{v:.4f}" for v in train(family, method, K)]
            rows.append([family, method if method != "bp" else "plain training", K if method != "bp" else 1, *numbers])
            print(*rows[-1], file=sys.stderr, flush=True)
    headers = ["loss", "accuracy", "loss through AuxNets", "accuracy through AuxNets", "violation"]
    print(table(rows, ["model", "method", "K", *headers]))


if __name__ == "__main__":
    main()
