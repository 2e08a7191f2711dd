"""The link that a planner counts with: as given, or measured between the ranks."""

from __future__ import annotations

from lpcompile.errors import UsageError
from lpcompile.passes.partition.evaluate import Link
from lpcompile.runtime.comm import link
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.launch import launch
from lpcompile.runtime.launch.hosts import bits_per_s

MEASURE = "measure"


def planner_link(given: str | None) -> Link | str | None:
    """The link of a command line: "measure", or a rate as tc writes it."""
    return given if given in (None, MEASURE) else Link(bits_per_s(given) / 8e3)


def link_of(given: Link | str | None, device: str) -> Link | None:
    """The given link. "measure" measures it: between the ranks under torchrun, where all of them call this, else
    between two processes of this machine."""
    if given is None or isinstance(given, Link):
        return given
    if given != MEASURE:
        raise UsageError(f"link={given!r} is neither a Link(bytes_per_ms, latency_ms) nor {MEASURE!r}")
    if in_torchrun():
        launch.join(device)
        found = link.measure(device)
    else:
        found = launch.launch(link.measure, world=2)
    return Link(found.bytes_per_ms, found.latency_ms)
