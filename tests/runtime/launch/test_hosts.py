"""Hosts that are apart: rates, refusals, and real ranks in namespaces of their own where this machine has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lpcompile.errors import UsageError
from lpcompile.runtime.comm import link
from lpcompile.runtime.launch import hosts, launch
from tests.distributed.deadline import started, wait_until

MESSAGE = 2**20  # bytes: at 50 Mb/s 168 ms


def why_not() -> str:
    """Why this machine has no namespaces; "" where it has."""
    try:
        with hosts.lay(2) as found:
            found.limit("50mbit")
    except (UsageError, OSError) as error:
        return str(error)
    return ""


REASON = why_not()
needs_hosts = pytest.mark.skipif(bool(REASON), reason=REASON)


def test_rates_are_those_of_tc():
    assert hosts.bits_per_s("100mbit") == 1e8 and hosts.bits_per_s("2.5gbit") == 2.5e9
    for wrong in ("100", "fast", "0mbit", "10GB", "900gbit", "1kbit"):
        with pytest.raises(UsageError, match="give 100mbit, 1gbit or the like"):
            hosts.bits_per_s(wrong)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="only root may make them: run it with sudo"):
        hosts.refuse_without_rights(2)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts.shutil, "which", lambda name: None if name == "tc" else "/bin/true")
    with pytest.raises(UsageError, match="need the command tc: install iproute2"):
        hosts.refuse_without_rights(2)
    with pytest.raises(UsageError, match="give 2 to 64"):
        hosts.refuse_without_rights(1)


@needs_hosts
def test_a_kernel_without_the_token_bucket_is_an_error_that_says_so(monkeypatch):
    with hosts.lay(2) as found:
        run = subprocess.run
        monkeypatch.setattr(hosts.subprocess, "run", lambda command, **given: run(
            [*(["false"] if "tbf" in command else command)], **given))  # fmt: skip
        with pytest.raises(UsageError, match="this machine cannot run .* perhaps its kernel lacks the token bucket"):
            found.limit("1gbit")


def exchanged() -> tuple[float, int, float]:
    """ms of a message to the other rank, and what came."""
    rank, tensor = dist.get_rank(), torch.full((MESSAGE,), dist.get_rank() + 1, dtype=torch.uint8)
    dist.barrier()
    begin = time.perf_counter()
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        came = torch.empty_like(tensor)
        dist.recv(came, 0)
        dist.send(tensor, 0)
    took = 1e3 * (time.perf_counter() - begin) / 2
    return took, int(tensor[0]), link.measure().bytes_per_ms


@needs_hosts
def test_ranks_on_two_hosts_exchange_messages_at_the_rate_of_their_link():
    with hosts.lay(2) as found:
        found.limit("50mbit")
        took, came, rate = launch.launch(exchanged, world=2, timeout=300, hosts=found)
    assert came == 2 and took > 0.7 * MESSAGE * 8 / 5e4
    assert rate < 50e6 / 8 / 1e3 * 1.05  # never faster than the link; slower where the machine is busy


@needs_hosts
def test_three_hosts_are_joined_by_a_switch_and_nothing_is_left():
    with hosts.lay(3) as found:
        found.limit("1gbit")
        assert len(found.ends) == 6 and found.of(2, 3) == f"/proc/{found.processes[2]}/ns/net"
        assert [found.of(r, 6) for r in (0, 1)] == [found.of(0, 3)] * 2
        command = ["nsenter", f"--net={found.of(0, 3)}", "cat", "/proc/net/dev"]
        assert "host:" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert not any(Path(f"/proc/{pid}").exists() for pid in found.processes)


@needs_hosts
def test_a_killed_owner_leaves_no_namespace_behind():
    text = "from lpcompile.runtime.launch import hosts\nimport time\nwith hosts.lay(2) as found:\n" \
           "    print(*found.processes, flush=True)\n    time.sleep(600)"  # fmt: skip
    with started([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as process:
        pids = process.stdout.readline().split()
        assert len(pids) == 2 and all(Path(f"/proc/{pid}/ns/net").exists() for pid in pids)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60, "the namespaces are gone")
