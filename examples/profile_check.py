"""Do the measured costs of the units add up to the step that they are parts of?

    python examples/profile_check.py [MODEL ...]

Both sides run alternately in one process with one thread, and medians are compared.
"""

import sys

import torch

import lpcompile
from lpcompile import sources
from lpcompile.core.tables import table
from lpcompile.passes.profile.measure import measured_profile
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.units import units

BATCHES = {"resnet110": 32, "torchvision:resnet50": 2, "torchvision:vit_b_16": 2}
rows = []
for name in sys.argv[1:] or BATCHES:
    source = sources.load(name, batch=BATCHES.get(name, 2))
    captured = lpcompile.capture(source.model, source.example_args, source.example_kwargs)
    parts = units(captured, cuts(captured))
    tensors = captured._lp.signature.flat(source.example_args, source.example_kwargs)
    torch.set_num_threads(1)
    profile = measured_profile(captured, parts, tensors, threads=1, seconds=30)
    ratio = profile.raw_ratio or 0.0
    whole = (profile.whole_forward or 0.0) + (profile.whole_backward or 0.0)
    batch = BATCHES.get(name, 2)
    rows.append([name, batch, len(parts), f"{whole * ratio:.1f}", f"{whole:.1f}", f"{ratio:.3f}"])
print(table(rows, ["model", "batch", "units", "sum of units, ms", "undivided step, ms", "ratio"]))
