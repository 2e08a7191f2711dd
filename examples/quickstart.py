"""Each artefact of a compilation as it comes to be: graph, cuts, costs, plan, stages, and the proof.

    python examples/quickstart.py [MODEL] [K]

MODEL is a built-in name (default resnet20) or anything that `python -m lpcompile inspect` takes.
"""

import sys

import torch

import lpcompile
from lpcompile import sources
from lpcompile.tables import cut_table, unit_table

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
print(f"# 5. Stage {K - 1} takes the auxiliary variable `lam` where the model had its own activation\n")
print("\n".join(program.stages[-1].code.strip().splitlines()[:6]), "\n    ...\n")

print("# 6. The proof: one training step of each, from the same seed\n")


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
