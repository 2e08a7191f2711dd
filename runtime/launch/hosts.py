"""Hosts that are apart: network namespaces of this machine, joined by links of a given rate.

>>> with lay(2) as hosts:                       # needs root
...     hosts.limit("100mbit")                  # in both directions of every link; None: no limit
...     launch(train, (job,), world=2, hosts=hosts)

Each namespace belongs to a small process that lives as long as its owner: however the owner ends, the system takes
namespaces and links away, and nothing is left to remove. Two hosts share one link; more have one each to a switch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lpcompile.errors import UsageError

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
INTERFACE = "host"  # of a host's end of its link
FASTEST = 400e9  # bits per second; a rate above is a slip
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
# A token bucket lets this much pass at once. Small, so that messages of a step do not travel on credit, but a few
# packets long at the least, and half a millisecond at the rate.
SMALLEST_BURST, BURST_SECONDS, QUEUE_SECONDS = 16_384, 5e-4, 0.1
HOLD = "echo; exec cat"  # ends when the other end of its input is closed


@dataclass(frozen=True)
class Hosts:
    """Namespaces by host, and the ends of links whose rate can be limited: (process of the namespace, interface)."""

    processes: tuple[int, ...]
    ends: tuple[tuple[int, str], ...]

    def of(self, rank: int, world: int) -> str:
        """The namespace file of a rank: hosts are filled one after another."""
        return f"/proc/{self.processes[rank * len(self.processes) // world]}/ns/net"

    def limit(self, rate: str | None) -> None:
        """Set the rate of every link, in each direction."""
        for process, interface in self.ends:
            where = ["nsenter", f"--net=/proc/{process}/ns/net", "tc", "qdisc"]
            subprocess.run([*where, "del", "dev", interface, "root"], capture_output=True, check=False)
            if rate is not None:
                # packets handed down in one piece must fit into the bucket
                _run("nsenter", f"--net=/proc/{process}/ns/net", "ip", "link", "set", interface, "gso_max_size",
                     str(min(65_536, _burst(rate))))  # fmt: skip
                _run(*where, "add", "dev", interface, "root", "tbf", "rate", rate, "burst", str(_burst(rate)),
                     "limit", str(max(262_144, int(QUEUE_SECONDS * bits_per_s(rate) / 8))),
                     kernel="the token bucket filter (sch_tbf)")  # fmt: skip


def bits_per_s(rate: str) -> float:
    """The rate of a link, written as tc takes it: 25mbit, 1gbit, 2.5gbit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    value = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 1e4 <= value <= FASTEST:
        raise UsageError(f"{rate!r} is no rate of a link; give 100mbit, 1gbit or the like (kbit, mbit or gbit)")
    return value


def _burst(rate: str) -> int:
    return int(max(SMALLEST_BURST, BURST_SECONDS * bits_per_s(rate) / 8))


@contextlib.contextmanager
def lay(count: int) -> Iterator[Hosts]:
    """So many hosts, all joined, without a limit. They are gone afterwards."""
    refuse_without_rights(count)
    with contextlib.ExitStack() as held:
        processes = tuple(held.enter_context(_namespace()) for _ in range(count))
        ends: list[tuple[int, str]] = []
        if count == 2:
            _join(processes[0], INTERFACE, processes[1], INTERFACE)
        else:
            switch = held.enter_context(_namespace())
            _inside(switch, "ip", "link", "add", "switch", "type", "bridge", kernel="bridges")
            _inside(switch, "ip", "link", "set", "switch", "up")
            for number, process in enumerate(processes):
                _join(process, INTERFACE, switch, f"port{number}")
                _inside(switch, "ip", "link", "set", f"port{number}", "master", "switch")
                ends.append((switch, f"port{number}"))
        for number, process in enumerate(processes):
            _inside(process, "ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", INTERFACE)
        for process, interface in ends:
            _inside(process, "ip", "link", "set", interface, "up")
        for process in processes:
            _inside(process, "ip", "link", "set", "lo", "up")
            _inside(process, "ip", "link", "set", INTERFACE, "up")
        yield Hosts(processes, (*((p, INTERFACE) for p in processes), *ends))


def refuse_without_rights(count: int) -> None:
    """What hosts need of the machine, said before anything starts."""
    if not 2 <= count <= 64:
        raise UsageError(f"{count} hosts: give 2 to 64")
    if not os.path.exists("/proc/self/ns/net"):
        raise UsageError("hosts that are apart are network namespaces, which only Linux has")
    if os.geteuid() != 0:
        raise UsageError("hosts that are apart are network namespaces, and only root may make them: run it with sudo")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UsageError(f"hosts that are apart need the command {tool}: install {package} (apt-get, dnf)")


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """The process of a new namespace: it ends with the pipe that this process holds open."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            raise _refused("make a network namespace", process.stderr.read(), "network namespaces")
        try:
            yield process.pid
        finally:
            process.stdin.close()


def _join(one: int, name: str, other: int, its_name: str) -> None:
    _run("ip", "link", "add", name, "netns", str(one), "type", "veth", "peer", "name", its_name, "netns", str(other),
         kernel="virtual links (veth)")  # fmt: skip


def _inside(process: int, *command: str, kernel: str = "") -> None:
    _run("nsenter", f"--net=/proc/{process}/ns/net", *command, kernel=kernel)


def _run(*command: str, kernel: str = "") -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(f"run `{' '.join(command)}`", done.stderr, kernel)


def _refused(what: str, said: str, kernel: str) -> UsageError:
    why = said.strip().splitlines()[0] if said.strip() else "no reason was given"
    missing = f"; perhaps its kernel lacks {kernel}, or a container may not use them" if kernel else ""
    return UsageError(f"this machine cannot {what}: {why}{missing}")


def enter(namespace: str) -> None:
    """Move this thread, and those that it will start, to a host; gloo then connects over the host's link."""
    libc: Any = ctypes.CDLL("libc.so.6", use_errno=True)
    with open(namespace) as file:
        if libc.setns(file.fileno(), NEW_NETWORK) != 0:
            raise UsageError(f"this process may not move to {namespace}: {os.strerror(ctypes.get_errno())}")
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
