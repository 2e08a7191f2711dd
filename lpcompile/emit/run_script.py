# lpcompile copies this file, unchanged, into every folder that it emits, as run.py.
"""Train the program in this folder.

    torchrun --nproc-per-node K run.py --data train.py:batches --loss train.py:loss     # one stage a process
    python run.py                                                                       # all stages in this process

`batches()` gives the pairs (x, y) of an epoch: x is what the model takes, a tensor, a tuple, or a dict by argument
name. `loss(output, y)` gives a scalar. Without them a few steps run on random inputs, to see that everything works.
The trained weights are written to trained.safetensors under the model's own keys.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lpcompile
import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE:FUNCTION", help="a function that gives the batches of an epoch")
    parser.add_argument("--loss", metavar="FILE:FUNCTION", help="loss(output, y)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--method", help="another training method than the plan's")
    parser.add_argument("--output", default=HERE / "trained.safetensors", type=Path)
    given = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
    program = lpcompile.load(HERE)
    loss = function(given.loss) if given.loss else mean_square
    batches = function(given.data) if given.data else lambda: random_batches(program)
    trainer = program.trainer(loss, optimizer=lambda ps: torch.optim.SGD(ps, given.lr, 0.9), method=given.method)
    for epoch in range(given.epochs):
        for x, y in batches():
            metrics = trainer.gather(trainer.step(x, y))
            if trainer.rank == 0:
                found = {k: f"{v:.4g}" for k, v in metrics.items() if isinstance(v, float)}
                print(f"epoch {epoch}", *(f"{k} {v}" for k, v in found.items()), flush=True)
    state = trainer.state_dict()
    if trainer.rank == 0:
        save_file({k: t.detach().clone().contiguous() for k, t in state.items()}, given.output)
        print(f"written: {given.output}")


def function(name: str) -> Callable[..., Any]:
    """`train.py:batches`."""
    file, _, attribute = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file) if file else None
    if spec is None or spec.loader is None or not Path(file).exists():
        raise SystemExit(f"{name}: give a Python file and a function in it, as in train.py:batches")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, attribute, None)):
        raise SystemExit(f"{file} has no function {attribute!r}")
    return getattr(module, attribute)  # type: ignore[no-any-return]


def random_batches(program: lpcompile.Program, steps: int = 5) -> Iterator[tuple[Any, None]]:
    """Random batches in the shape that the program was compiled for; the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        inputs = []
        for spec in program.input_specs:
            random = torch.randn if spec.is_float else lambda *s, generator: torch.randint(0, 2, s, generator=generator)
            inputs.append(random(*spec.shape, generator=generator).to(spec.dtype))
        yield program.call_of(inputs), None


def mean_square(output: Any, y: Any) -> torch.Tensor:
    """A loss for the random batches: the mean square of the model's outputs."""
    values = torch.utils._pytree.tree_leaves(output)
    floats = (v for v in values if isinstance(v, torch.Tensor) and v.requires_grad)
    return sum((v.float().square().mean() for v in floats), torch.zeros(()))


if __name__ == "__main__":
    main()
