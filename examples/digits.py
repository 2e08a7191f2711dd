"""Train a small ResNet on handwritten digits, in one process or on two:

    python examples/digits.py [METHOD] [K]
    torchrun --nproc-per-node 2 examples/digits.py [METHOD] 2

METHOD is the name of any method; by default an exact pipeline.
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import lpcompile
from lpcompile.runtime.methods import get_method

method = sys.argv[1] if len(sys.argv) > 1 else "auto"
K = int(sys.argv[2]) if len(sys.argv) > 2 else 2
EPOCHS, BATCH, LR = 8, 64, 0.1

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1)
images = (images - images.mean()) / images.std()
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train = torch.utils.data.TensorDataset(images[order[:1437]], labels[order[:1437]], torch.arange(1437))
test = torch.utils.data.TensorDataset(images[order[1437:]], labels[order[1437:]])

torch.set_num_threads(1)
torch.manual_seed(0)  # every rank makes the same model and shuffles alike
model = lpcompile.models.ResNet(20, width=8)
example = images[:BATCH]
init = "consistent" if get_method(method).aux == "auxnet" else None  # λ = X at the first step
program = lpcompile.parallelize(model, K, example_inputs=example, method=method, cost="flops", init=init)
loader = torch.utils.data.DataLoader(train, BATCH, shuffle=True, drop_last=True)
trainer = program.trainer(
    F.cross_entropy,
    optimizer=lambda ps: torch.optim.SGD(ps, LR, momentum=0.9, weight_decay=5e-4, nesterov=True),
    scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, LR, total_steps=EPOCHS * len(loader) + 1),
    total_steps=EPOCHS * len(loader),  # β rises until then
)
for epoch in range(EPOCHS):
    metrics = trainer.fit(loader)
    if trainer.rank == 0:
        shown = {name: round(value, 4) for name, value in metrics.items() if isinstance(value, float)}
        print(f"epoch {epoch}: {shown}", flush=True)
result = trainer.evaluate(torch.utils.data.DataLoader(test, 100), recalibrate=loader, aux=True)
if trainer.rank == 0:
    print({name: round(value, 4) for name, value in result.items()})
if trainer.distributed:
    torch.distributed.destroy_process_group()
