"""Measured cost of each AuxNet as a share of its stage's, against the budget.

    python examples/aux_budget.py                          # ResNet-110, WideResNet-40-10, ViT-B/16
    python examples/aux_budget.py resnet56 -K 4 --batch 32 --budget 0.2

Stage and AuxNet take steps in turn on one core; shown are medians over the rounds. AuxNets are derived with measured
costs.
"""

from __future__ import annotations

import argparse
import os
import statistics

import torch
from tabulate import tabulate

import lpcompile
from lpcompile import sources
from lpcompile.passes.auxnet.derive import aux_io
from lpcompile.passes.auxnet.measure import boundary_inputs, measure_share

DEFAULTS = {"resnet110": 64, "wide_resnet40_10": 4, "torchvision:vit_b_16": 4}  # batch sizes for one core


def shares(name: str, K: int, batch: int, budget: float, rounds: int) -> list[list[str]]:
    source = sources.load(name, batch=batch)
    program = lpcompile.parallelize(
        source.model, K, example_inputs=source.example_args, example_kwargs=source.example_kwargs, cost="measured",
        aux_budget=budget, cache=False, gate=False,
    )  # fmt: skip
    program.train()
    tensors = program.captured._lp.signature.flat(source.example_args, source.example_kwargs)
    inputs = boundary_inputs(program.stages, tensors)
    rows = []
    for k, aux in enumerate(program.auxnets):
        given = inputs[k] if aux_io(aux).lams else [tensors[i] for i in aux_io(aux).inputs]
        found = [measure_share(program.stages[k], aux, inputs[k], given).total for _ in range(rounds)]
        share, record = statistics.median(found), aux.record
        blocks = len(record.kept) + len(record.dropped)
        kept = f"keeps {len(record.kept)} of {blocks} blocks, {len(record.thinned)} thinned"
        rows.append([name, str(k), f"{budget:.3f}", f"{share:.4f}", f"{min(found):.4f}-{max(found):.4f}",
                     f"{share / budget:.2f}", kept])  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(DEFAULTS), help="as for `python -m lpcompile inspect`")
    parser.add_argument("-K", type=int, default=3)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for name in given.models:
        rows += shares(name, given.K, given.batch or DEFAULTS.get(name, 8), given.budget, given.rounds)
    headers = ["model", "AuxNet", "budget", "measured share", "over rounds", "measured / budget", "made of"]
    print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
