"""Every artefact of a compilation: graph, cuts, costs, plan, emitted code, bitwise check, schedule; then training.

    python examples/quickstart.py [MODEL] [K]

MODEL is a built-in name (default resnet20) or any other model that `python -m lpcompile inspect` takes. Only resnet20
is trained at the end, on scikit-learn's digits.
"""

import copy
import sys
import tempfile
from pathlib import Path

import torch

import lpcompile
from lpcompile import sources
from lpcompile.core.tables import cut_table, unit_table
from lpcompile.runtime.engine.schedules import default_schedule

name = sys.argv[1] if len(sys.argv) > 1 else "resnet20"
K = int(sys.argv[2]) if len(sys.argv) > 2 else 3
source = sources.load(name, batch=16)
model, args, kwargs = source.model, source.example_args, source.example_kwargs
print(f"# {name}: {sum(p.numel() for p in model.parameters()):,} parameters\n")

program = lpcompile.parallelize(model, K, example_inputs=args, example_kwargs=kwargs)

print("# 1. The captured graph: layers under their own names, in program order (first lines)\n")
print("\n".join(program.captured.code.strip().splitlines()[:8]), "\n    ...\n")
print("# 2. Where it may be cut, and why not elsewhere (first positions)\n")
print(cut_table(lpcompile.cuts(program.captured, max_width=program.plan.width)[:14]), "\n")
print("# 3. What each unit between cuts costs\n")
print(unit_table(program.plan), "\n")
print("# 4. The plan\n")
print(program.plan, "\n")
print("# 5. A stage as code: it takes the auxiliary variable `lam` where the model had its own activation\n")
with tempfile.TemporaryDirectory() as folder:
    written = program.emit(Path(folder) / "program")
    stage, auxnet = (file.read_text() for file in (written / f"stage_{K - 1}.py", written / "auxnet_0.py"))
print("\n".join(stage.splitlines()[:44]), "\n    ...\n")
print("# 6. And an AuxNet, derived from stage 0: methods such as `penalty` predict the `lam` of stage 1 by it\n")
print(auxnet)

print("# 7. The proof: one training step of each, from the same seed\n")


def step(module: torch.nn.Module) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    torch.manual_seed(0)
    out = module(*args, **kwargs)
    first = out if isinstance(out, torch.Tensor) else out[0]
    model.zero_grad()
    first.square().mean().backward()
    return first.detach(), [p.grad for p in model.parameters()]


expected, gradients = step(model)
found, stage_gradients = step(program)
pairs = zip(gradients, stage_gradients, strict=True)
same = all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
keys = set().union(*(stage.state_dict() for stage in program.stages)) == set(model.state_dict())
print(f"outputs bitwise equal: {torch.equal(expected, found)}; gradients: {same}; state_dict keys: {keys}")
if not (torch.equal(expected, found) and same and keys):
    sys.exit("the program is not the model: please report this")

print("\n# 8. What each rank does in a step: an exact pipeline that leaves weight gradients for last\n")
schedule = default_schedule(program.plan)
print("\n".join(str(schedule).splitlines()[:20]), "\n...\n")

if name == "resnet20":
    print("# 9. Training, all stages in this process (torchrun runs the same with one stage a rank): 8 px digits\n")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    fresh = sources.load(name, batch=32, input_shape="3x8x8")
    order = torch.randperm(len(images))
    rest = [(images[b], labels[b]) for b in order[32 * 40 :].split(64)]

    def train(model: torch.nn.Module, stages: int) -> float:
        """Test accuracy after three epochs; one stage is plain training."""
        program = lpcompile.parallelize(model, stages, example_inputs=images[:32], cost="flops")
        trainer = program.trainer(
            torch.nn.functional.cross_entropy,
            optimizer=lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9),
            scheduler=lambda sgd: torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, 3 * 40),
        )
        for epoch in range(3):
            for batch in order[: 32 * 40].split(32):
                metrics = trainer.step(images[batch], labels[batch])
            print(f"K = {stages}, epoch {epoch}: loss {metrics['loss']:.3f}")
        return trainer.evaluate(rest)["accuracy"]

    plain = train(copy.deepcopy(fresh.model), 1)
    print(f"test accuracy: {train(fresh.model, K):.3f} in {K} stages, {plain:.3f} undivided")
