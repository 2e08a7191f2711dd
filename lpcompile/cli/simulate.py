"""The command `simulate`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lpcompile.cli.flags import DEFAULT_DEVICE, DEFAULT_METHOD, Parser, device_help, option, refuse_unread
from lpcompile.cli.parts.files import writable
from lpcompile.cli.parts.model import is_plan
from lpcompile.core.system.atomic_file import write_text
from lpcompile.draw.terminal import show
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.core.plan import Plan
    from lpcompile.simulate.device_spec import DeviceSpec

PIPELINES = ("gpipe", "1f1b")
PAPER_FLAGS = ("paper", "device_spec", "json")  # the flags that each mode reads
CALIBRATE_FLAGS = ("calibrate", "gpus")
REGIONS_UNREAD = ("nodes", "method", "per_device", "trace")
CHECK_FLAGS = ("check", "model", "K", "batch", "device_spec")


def add_arguments(parser: Parser) -> None:
    parser.description = (
        "Play the schedules that the runtime executes on devices that you may not have: K stages x replicas on so many "
        "nodes, against data parallelism alone and pipelines. Times of a step; nothing is trained."
    )
    add = parser.flag
    add("model", nargs="?", help="a model as for inspect, or a saved plan (.json)")
    add("K", type=str, metavar="K[,K...]", help="numbers of stages (default: all that divide the devices)")
    add("nodes", type=int, default=1, help="number of nodes (default 1)")
    add("gpus", type=int, help="devices in a node (default: the device spec's)")
    add("device_spec", default=DEFAULT_DEVICE, help=lambda: device_help(DEFAULT_DEVICE))
    add("method", default=DEFAULT_METHOD, help=f"the layer-parallel method or recipe (default {DEFAULT_METHOD})")
    add("batch", help="samples of a step for strong scaling (default: as many as one node has in weak scaling)")
    add("per_device", type=int, default=32, metavar="N", help="samples for each device in weak scaling (default 32)")
    add("input", help="input shape without the batch: 3x32x32, or 16:int64")
    add("cost", default="flops", help="where costs come from (default flops)")
    add("json", action="store_true", help="print all numbers as JSON")
    add(
        "regions",
        metavar="FILE",
        help="write one page: which of DDP, FSDP, pipelines, stream and AuxNets is the "
        "fastest, over K, the batch and the rate of links between hosts of one device each (or --gpus of them)",
    )
    add("rate", metavar="A,B,...", help="of --regions: rates of these links (default 100gbit, 10gbit, 1gbit, 100mbit, "
        "25mbit)")  # fmt: skip
    add("trace", metavar="FILE", help="write the timeline of the fastest split into stages as a Chrome trace")
    add("paper", action="store_true", help="the paper's speedups, simulated with its placement and with ours")
    add("check", action="store_true", help="measure steps at K = 2 on this machine against predicted ones, for every "
        "method")  # fmt: skip
    add("calibrate", metavar="FILE", help="measure this machine for a few seconds and write its device spec to FILE")


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.simulate.device_spec import device_spec

    for name in ("nodes", "gpus", "batch", "per_device"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise UsageError(f"{option(name)} {getattr(arguments, name)}: give a number of at least 1")
    device = device_spec(arguments.device_spec)
    if arguments.paper:
        return _paper(arguments, device)
    if arguments.calibrate:
        return _calibrate(arguments)
    if arguments.model is None:
        raise UsageError("simulate needs a MODEL, or --paper, or --calibrate FILE")
    if arguments.check:
        return _check(arguments, device)
    if is_plan(arguments.model):
        refuse_unread(arguments, "a saved plan", unread=("input", "cost"))
    if arguments.regions:
        return _regions(arguments, device)
    if "rate" in arguments.typed:
        raise UsageError("--rate has no effect without --regions FILE; give both, or leave it out")
    device = replace(device, gpus=arguments.gpus or device.gpus)
    plan = plan_for(arguments)
    return _scale(arguments, plan, device)


def plan_for(arguments: argparse.Namespace) -> Plan:
    """The undivided plan of a model (its units are all that is needed), or a saved plan."""
    from lpcompile import sources
    from lpcompile.compile import parallelize
    from lpcompile.core.plan import Plan
    from lpcompile.runtime.methods.recipe import recipe_of

    recipe_of(arguments.method)
    if is_plan(arguments.model):
        return Plan.load(arguments.model)
    meta = arguments.cost == "flops"
    source = sources.load(arguments.model, input_shape=arguments.input, device="meta" if meta else "cpu")
    program = parallelize(source.model, 1, example_inputs=source.example_args, example_kwargs=source.example_kwargs,
                          cost=arguments.cost, method="bp")  # fmt: skip
    return program.plan


def _scale(arguments: argparse.Namespace, plan: Plan, device: DeviceSpec) -> int:
    from lpcompile.simulate.scaling import fastest, simulated, splits
    from lpcompile.simulate.scaling_text import scaling_json, scaling_text
    from lpcompile.simulate.step_text import chrome_trace

    devices, own = arguments.nodes * device.gpus, arguments.per_device
    file = writable("trace", arguments.trace)
    batch = arguments.batch or own * device.gpus
    stages, method = stage_counts(arguments.K, devices, len(plan.units)), arguments.method
    methods = tuple(dict.fromkeys((method, *PIPELINES)))
    counts = _doubling(devices)
    strong = {n: splits(plan, device, n, batch, methods, stages) for n in counts}
    weak = {n: splits(plan, device, n, own * n, methods, stages) for n in counts}
    if not strong[devices]:
        raise UsageError(
            f"a batch of {batch} cannot be divided over {devices} devices; give a --batch that they divide"
        )
    best = fastest(strong[devices], method)
    if file is not None:
        if best is None:
            raise UsageError(
                f"--trace {file}: {method!r} does not run on {devices} devices with a batch of {batch}; leave it out, "
                f"or give more --gpus or another --batch"
            )
        found = simulated(plan, device, method, best.K, best.replicas, batch)
        assert found is not None
        file.write_text(json.dumps(chrome_trace(found[0])))
    if arguments.json:
        print(json.dumps(scaling_json(plan, device, arguments.nodes, strong, weak), indent=1))
    else:
        text = scaling_text(plan, device, arguments.nodes, method, PIPELINES, strong, weak)
        show(text, strong=text.splitlines()[-2:])
    return 0


def _regions(arguments: argparse.Namespace, device: DeviceSpec) -> int:
    from lpcompile.core.system.progress import Shown
    from lpcompile.runtime.launch.hosts import bits_per_s
    from lpcompile.simulate.regions.places import BATCHES, RATES, STAGES, regions
    from lpcompile.simulate.regions.text import regions_json, regions_page, regions_text
    from lpcompile.training.measures import command, machine

    refuse_unread(arguments, "--regions", unread=REGIONS_UNREAD)
    file = writable("regions", arguments.regions)
    assert file is not None
    given = [r.strip() for r in arguments.rate.split(",") if r.strip()] if arguments.rate else RATES
    rates = sorted(map(bits_per_s, given), reverse=True)
    plan, gpus = plan_for(arguments), arguments.gpus or 1
    stages = stage_counts(arguments.K, units=len(plan.units)) or tuple(K for K in STAGES if K <= len(plan.units))
    if min(stages, default=0) < 2:
        raise UsageError(f"-K {arguments.K}: --regions compares ways to use 2 devices or more")
    batches = (arguments.batch,) if arguments.batch else BATCHES
    with Shown("simulate") as progress:
        found = regions(plan, device, stages, batches, rates, gpus, progress)
    about, text = machine(), regions_text(found, plan, device, gpus)
    commit = f", commit {about['commit']}" if about["commit"] else ""
    write_text(file, regions_page(found, plan, device, gpus, f"{command()} ({about['date']}{commit})"))
    if arguments.json:
        print(json.dumps(regions_json(found, plan, device, gpus, {**about, "command": command()}), indent=1))
    else:
        show(text)
    print(f"written to {file}", file=sys.stderr)
    return 0


def _doubling(most: int) -> list[int]:
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def stage_counts(given: str | None, devices: int | None = None, units: int | None = None) -> tuple[int, ...]:
    """The K of "2,4,8", checked against the numbers of devices and units."""
    if given is None:
        return ()
    try:
        found = tuple(int(part) for part in given.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise UsageError(f"-K {given}: give numbers of stages (1 or more), as 2,4,8")
    for K in found:
        if devices is not None and devices % K:
            raise UsageError(f"-K {K} does not divide {devices} devices; every replica needs {K} of them")
        if units is not None and units < K:
            raise UsageError(f"-K {K}: the model can be cut into at most {units} stages")
    return found


def _paper(arguments: argparse.Namespace, device: DeviceSpec) -> int:
    from lpcompile.simulate.paper_table import fitted_load, paper_rows, paper_text

    refuse_unread(arguments, "--paper", reads=PAPER_FLAGS)
    rows = paper_rows(device)
    if not arguments.json:
        show(paper_text(rows, device.name))
        return 0
    load = fitted_load(rows)
    data: list[dict[str, Any]] = [
        {
            "model": row.model,
            "auxnet": row.aux,
            "K": row.K,
            "paper": row.paper,
            "simulated": row.rho(load * row.serial),
            "penalty": row.rho(load * row.serial, row.penalty),
            "multiplier": row.rho(load * row.serial, row.multiplier),
        }
        for row in rows
    ]
    print(json.dumps({"version": 1, "device": device.name, "data_load": load, "rows": data}, indent=1))
    return 0


def _check(arguments: argparse.Namespace, device: DeviceSpec) -> int:
    from lpcompile.simulate.calibrate import calibrate
    from lpcompile.simulate.check import check, check_text
    from lpcompile.simulate.device_spec import THIS_MACHINE

    refuse_unread(arguments, "--check", reads=CHECK_FLAGS)
    if is_plan(arguments.model):
        raise UsageError(f"{arguments.model} is a saved plan, which cannot be trained; name the model instead")
    (K, *others) = stage_counts(arguments.K or "2")
    if others:
        raise UsageError(f"-K {arguments.K}: --check measures one number of stages; give one")
    named = "device_spec" in arguments.typed
    if named and device.name != THIS_MACHINE.name:
        raise UsageError(
            f"--device-spec {arguments.device_spec}: --check measures this machine; leave it out, or give "
            f"{THIS_MACHINE.name} or a file that --calibrate wrote"
        )
    device = device if named else calibrate(K)
    show(check_text(check([arguments.model], K=K, batch=arguments.batch, device=device), device))
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from lpcompile.simulate.calibrate import calibrate

    refuse_unread(arguments, "--calibrate", reads=CALIBRATE_FLAGS)
    file = writable("calibrate", arguments.calibrate)
    assert file is not None
    spec = calibrate(arguments.gpus or 2)
    file.write_text(json.dumps(spec.to_json(), indent=1) + "\n")
    print(f"{spec}\nwritten to {file}; use it with --device-spec {file}")
    return 0
