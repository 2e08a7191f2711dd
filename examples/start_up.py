"""What comes before and between steps, over the size of the model: does any of it grow faster than the model does?

    python examples/start_up.py [MODEL ...]          # resnet20, resnet32, resnet56, resnet110; minutes

Every model is planned, launched on two ranks, trained for a step by `multiplier`, saved and loaded, as `bench` does it.
Costs are counted, not measured: measuring takes a fixed time by design. The last line is the largest model over the
smallest, to be held against how their numbers of layers and of parameters grow.
"""

import sys

from lpcompile import sources
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench
from lpcompile.bench.run import bench
from lpcompile.core.tables import table

MODELS = ("resnet20", "resnet32", "resnet56", "resnet110")


def measured(name):
    model = sources.load(name, batch=2).model
    layers = sum(1 for m in model.modules() if not any(True for _ in m.children()))
    found = Bench(BenchRequest(name, contenders=("multiplier",), batch=32, steps=4, cost="flops"))
    bench(found)
    step = found.row("plain").step[0]
    size = {"layers": layers, "parameters": sum(p.numel() for p in model.parameters()), "plain step ms": step}
    return size | {f"{what} s": seconds for what, seconds in found.start.items()}


if __name__ == "__main__":
    rows = []
    for name in sys.argv[1:] or MODELS:
        rows.append({"model": name} | measured(name))
        print(rows[-1], file=sys.stderr, flush=True)
    cells = [[f"{v:.3g}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    growth = [
        f"x {last / first:.1f}" for first, last in list(zip(rows[0].values(), rows[-1].values(), strict=True))[1:]
    ]
    print(table([*cells, ["largest / smallest", *growth]], list(rows[0])))
