"""What a step costs besides its compute and its messages, and where a rank's memory goes:

    python examples/overhead.py [MODEL] [BATCH]          # resnet110 64, K = 2, two pinned processes

Three tables. The executor against a plain loop: K = 1 steps of the trainer and plain training steps in turn in one
process, so that all Python of the runtime counts. Then, from the trace of two ranks: the share of a step in compute,
messages and waiting, and what is left of it; and where each rank's memory went.
"""

import json
import statistics
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.core.tables import size, table
from lpcompile.models import REGISTRY
from lpcompile.runtime.launch.launch import keep_freed_memory

STEPS = 12


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


def batches(name, count, batch):
    return [(REGISTRY[name].inputs(batch, seed=i), torch.arange(batch) % 10) for i in range(count)]


def against_a_loop(name, data):
    """Medians of both, step by step in turn."""
    plain, model = (REGISTRY[name].factory() for _ in range(2))
    model.load_state_dict(plain.state_dict())
    optimizer = sgd(plain.parameters())
    program = lpcompile.parallelize(model, 1, example_inputs=data[0][0], cost="flops", gate=False)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd)
    times = {"plain loop": [], "trainer, K = 1": []}
    for x, y in data:
        begin = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
        middle = time.perf_counter()
        trainer.step(x, y)
        times["plain loop"].append(middle - begin)
        times["trainer, K = 1"].append(time.perf_counter() - middle)
    median = {what: statistics.median(found[2:]) for what, found in times.items()}
    rows = [[what, f"{1e3 * t:.1f}", f"{t / median['plain loop']:.3f}"] for what, t in median.items()]
    return table(rows, ["", "step ms", "ratio"])


def from_the_trace(name, data, method):
    torch.manual_seed(0)
    model = REGISTRY[name].factory()
    program = lpcompile.parallelize(model, 2, example_inputs=data[0][0], method=method, init="consistent", threads=1)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/trace.json"
        program.fit(F.cross_entropy, data, 1, optimizer=sgd, method=method, trace=file, train_batches=0)
        with open(file) as opened:
            events = json.load(opened)["traceEvents"]
    shares, memory = [], []
    for rank in range(2):
        mine = [e for e in events if e["pid"] == rank and e["ph"] == "X" and 4 <= e["args"]["step"] < len(data) - 1]
        steps = [[e for e in mine if e["args"]["step"] == s] for s in sorted({e["args"]["step"] for e in mine})]
        lengths = [max(e["ts"] + e["dur"] for e in step) - min(e["ts"] for e in step) for step in steps]
        row = [method, rank, f"{statistics.median(lengths) / 1e3:.1f}"]
        total = sum(lengths)
        inside = {kind: sum(e["dur"] for e in mine if e["cat"] == kind) for kind in ("compute", "message", "wait")}
        row += [f"{100 * inside[kind] / total:.2f} %" for kind in inside]
        shares.append([*row, f"{100 * (total - sum(inside.values())) / total:.2f} %"])
        counted = next(e["args"] for e in events if e["ph"] == "C" and e["pid"] == rank)
        memory.append([f"{method}, rank {rank}", *(size(2**20 * v) for v in counted.values())])
    return shares, (["", *counted], memory)


def main():
    name, batch = sys.argv[1] if len(sys.argv) > 1 else "resnet110", int(sys.argv[2]) if len(sys.argv) > 2 else 64
    torch.set_num_threads(1)
    keep_freed_memory()  # as ranks do: else both sides pay for page faults, and not alike
    data = batches(name, STEPS, batch)
    print(against_a_loop(name, data), end="\n\n")
    shares, memory = [], []
    for method in ("penalty", "multiplier", "bp"):
        found, (headers, rows) = from_the_trace(name, data, method)
        shares += found
        memory += rows
    print(table(shares, ["method", "rank", "step ms", "compute", "messages", "waiting", "the rest"]), end="\n\n")
    print(table(memory, headers))


if __name__ == "__main__":
    main()
