"""Device specs: how fast a device computes, and the links between devices and between nodes.

>>> device_spec("h100").across.time(2**20)      # ms for a MiB between two nodes
>>> device_spec("cluster.json")                  # your own: see `DeviceSpec`
"""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lpcompile.core.system.json_file import read_json
from lpcompile.errors import UsageError

VERSION = 1


@dataclass(frozen=True)
class LinkSpec:
    """One direction of a link between devices."""

    gigabytes_per_s: float
    latency_us: float

    def time(self, nbytes: float, share: float = 1.0) -> float:
        """ms to transfer `nbytes` with this share of the bandwidth."""
        return self.latency_us / 1e3 + nbytes / (self.gigabytes_per_s * 1e6 * share)


@dataclass(frozen=True)
class DeviceSpec:
    """Devices in nodes. Rates are those that training achieves, not peaks.

    flops: FLOP/s of a device, which turn counted costs into times. scale: speed relative to the machine that measured
        a plan; where given, measured plans keep their measured costs. At least one of the two is needed.
    memory_gb_per_s: memory bandwidth, for penalties, corrections and optimizers, and as a bound for counted costs.
    overhead_us: fixed cost of one unit's forward, at any number of samples; the backward has twice that.
    overlap: the share of a transfer during which both devices can compute: 1 on GPUs, 0 on plain CPUs.
    gpus: devices in a node; inside: the link between two of them; across: one of a node's `links` to other nodes.
    """

    name: str
    memory_gb_per_s: float
    inside: LinkSpec
    across: LinkSpec
    flops: float | None = None
    scale: float | None = None
    overhead_us: float = 0.0
    overlap: float = 1.0
    gpus: int = 8
    links: int = 1
    memory_gib: float | None = None
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NOMINAL = DeviceSpec("nominal", 400, LinkSpec(25, 10), LinkSpec(5, 20), flops=1e12)
THIS_MACHINE = DeviceSpec("this-machine", 30, LinkSpec(1.7, 60), LinkSpec(0.1, 200), flops=5e10, scale=1.0,
                          overhead_us=70, overlap=0.0, gpus=2)  # fmt: skip
_SPECS = (
    # 1 TFLOP/s and PCIe: for counted costs where no device is named
    NOMINAL,
    # processes on one machine over gloo; measured costs as they are
    THIS_MACHINE,
    # V100 (float32) with NVLink, 8 a node, four 100 Gb/s InfiniBand links
    DeviceSpec("v100", 750, LinkSpec(40, 10), LinkSpec(10, 20), flops=6e12, overhead_us=60, links=4, memory_gib=32),
    # H100 (TF32) with NVLink, 8 a node, eight 400 Gb/s InfiniBand links
    DeviceSpec("h100", 2500, LinkSpec(300, 8), LinkSpec(42, 15), flops=2e14, overhead_us=40, links=8, memory_gib=80),
    # V100 on PCIe, 4 a node, one 10 Gb Ethernet link
    DeviceSpec("10gbe-gpu", 750, LinkSpec(10, 15), LinkSpec(1.1, 50), flops=6e12, overhead_us=60, gpus=4,
               memory_gib=32),
    # servers with CPUs alone, one 10 Gb Ethernet link each
    DeviceSpec("10gbe-cpu", 60, LinkSpec(1.1, 50), LinkSpec(1.1, 50), flops=8e11, overhead_us=30, overlap=0.5, gpus=1),
)  # fmt: skip
BUILT_IN = {spec.name: spec for spec in _SPECS}  # the only list: help texts and errors read it


def apart(link: LinkSpec, machine: DeviceSpec = THIS_MACHINE) -> DeviceSpec:
    """The machine's cores as nodes of their own, joined by this link. A slow link leaves the cores free: copying a
    message takes as long as between two processes of one node, however long it is under way."""
    copying = min(1.0, link.gigabytes_per_s / machine.inside.gigabytes_per_s)
    overlap = 1 - (1 - machine.overlap) * copying
    return replace(machine, name=f"{8 * link.gigabytes_per_s:.3g} Gb/s", across=link, gpus=1, overlap=overlap)


def device_spec(given: str) -> DeviceSpec:
    """A built-in spec by name, or one from a JSON file."""
    if given in BUILT_IN:
        return BUILT_IN[given]
    path = Path(given)
    if path.suffix != ".json" and not path.is_file():
        close = get_close_matches(given, BUILT_IN, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"there is no device spec {given!r}; the closest is {close!r}, all are {', '.join(BUILT_IN)}; "
            f"or name a JSON file"
        )
    return from_json(read_json(path, f"the device spec {given}"), given)


def from_json(data: Any, where: str = "device spec") -> DeviceSpec:
    """Checks every field; an error names the field, its value and what to give instead."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise UsageError(
            f'{where}: not a device spec of version {VERSION} (version: {found!r}); add "version": {VERSION}'
        )
    values: dict[str, Any] = {}
    names = {f.name: f for f in fields(DeviceSpec)}
    for name in data:
        if name not in names:
            close = get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise UsageError(f"{where}: unknown field {name!r}; the closest is {close!r}, all are {', '.join(names)}")
    for name, field in names.items():
        if name not in data:
            if field.default is MISSING:
                raise UsageError(f"{where}: {name!r} is missing")
            continue
        values[name] = _link(data[name], f"{where}: {name}") if name in ("inside", "across") else data[name]
    _check(values, where)
    return DeviceSpec(**values)


def _check(values: dict[str, Any], where: str) -> None:
    for name in ("flops", "scale", "memory_gb_per_s", "memory_gib"):
        if values.get(name) is not None:
            _number(values[name], f"{where}: {name}", above=0)
    for name in ("overhead_us", "overlap"):
        _number(values.get(name, 0), f"{where}: {name}")
    for name in ("gpus", "links"):
        if not isinstance(values.get(name, 1), int) or isinstance(values.get(name), bool) or values.get(name, 1) < 1:
            raise UsageError(f"{where}: {name} is {values[name]!r}; give a whole number of at least 1")
    if values.get("overlap", 0) > 1:
        raise UsageError(f"{where}: overlap is {values['overlap']!r}; give a share from 0 to 1")
    if values.get("flops") is None and values.get("scale") is None:
        raise UsageError(f"{where}: neither 'flops' nor 'scale' is given; one of them says how fast a device is")


def _link(data: Any, where: str) -> LinkSpec:
    wanted = [f.name for f in fields(LinkSpec)]
    if not isinstance(data, dict) or sorted(data) != sorted(wanted):
        raise UsageError(f"{where} is {data!r}; give {{{', '.join(map(repr, wanted))}}}")
    _number(data["gigabytes_per_s"], f"{where}.gigabytes_per_s", above=0)
    _number(data["latency_us"], f"{where}.latency_us")
    return LinkSpec(float(data["gigabytes_per_s"]), float(data["latency_us"]))


def _number(value: Any, where: str, above: float | None = None) -> None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value < 0 or (above is not None and value <= above):
        raise UsageError(f"{where} is {value!r}; give a number {'above 0' if above is not None else 'of at least 0'}")
