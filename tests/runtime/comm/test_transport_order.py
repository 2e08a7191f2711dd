"""Transports by themselves: who waits for whom, and in which order."""

from __future__ import annotations

import pytest
import torch

from lpcompile.runtime.comm import transport
from lpcompile.runtime.comm.mesh import Mesh
from lpcompile.runtime.comm.transport import MAX_SENDS_IN_FLIGHT, Distributed, Local, dense


class Work:
    """A message under way, which notes when it is waited for."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait(self):
        self.log.append(self.name)


@pytest.fixture
def wire(monkeypatch):
    """Rank 0 of two, whose messages go nowhere: (transport, what was started, what was waited for)."""
    started, waited = [], []

    def start(kind):
        def begin(view, peer, tag):
            started.append((kind, peer, tag))
            return Work((kind, float(view.flatten()[0])), waited)

        return begin

    monkeypatch.setattr(transport.dist, "isend", start("send"))
    monkeypatch.setattr(transport.dist, "irecv", start("recv"))
    monkeypatch.setattr(transport.dist, "get_backend", lambda: "gloo")
    return Distributed(torch.device("cpu"), Mesh(2, 1, 0, 0)), started, waited


def number(n):
    return (torch.tensor([float(n)]),)


def test_a_rank_waits_for_its_oldest_send_when_too_many_are_in_flight(wire):
    t, started, waited = wire
    for slot in range(MAX_SENDS_IN_FLIGHT + 2):
        t.send(0, 1, ("X", 1, slot), number(slot))
    assert waited == [("send", 0.0), ("send", 1.0)] and len(started) == MAX_SENDS_IN_FLIGHT + 2


def test_kinds_of_messages_do_not_hold_each_other_back(wire):
    t, started, waited = wire
    for slot in range(MAX_SENDS_IN_FLIGHT):
        t.send(0, 1, ("X", 1, slot), number(slot))
        t.send(0, 1, ("lam", 1, slot), number(slot))
    assert waited == []
    assert len({tag for _, _, tag in started}) == 2


def test_a_tensor_of_another_size_never_meets_a_buffer_that_is_too_small_for_it(wire):
    t, started, _ = wire
    t.send(0, 1, ("X", 1, 0), (torch.zeros(4),))
    t.post(0, 1, ("X", 1, 0), [((3,), torch.float32)], depth=1)
    assert len({tag for _, _, tag in started}) == 2


def test_draining_waits_for_all_sends_in_their_order(wire):
    t, _, waited = wire
    for slot in range(3):
        t.send(0, 1, ("X", 1, slot), number(slot))
    t.drain()
    t.drain()
    assert waited == [("send", 0.0), ("send", 1.0), ("send", 2.0)]


def test_receive_buffers_are_used_in_turn(wire):
    t, _, _ = wire
    shapes = [((2, 3), torch.float32)]
    places = []
    for slot in range(4):
        t.post(0, 1, ("p", 1, slot), shapes, depth=2)
        (found,) = t.arrived(0, ("p", 1, slot))
        places.append(found.data_ptr())
    assert places[0] == places[2] != places[1] == places[3]


def test_a_buffer_that_is_passed_on_is_not_overwritten_before_it_has_left(wire):
    t, _, waited = wire
    t.post(0, 1, ("lam", 1, 0), [((1,), torch.float32)], depth=1)
    found = t.arrived(0, ("lam", 1, 0))
    waited.clear()
    t.send(0, 1, ("lam", 1, 0), found)
    t.post(0, 1, ("lam", 1, 1), [((1,), torch.float32)], depth=1)
    assert [kind for kind, _ in waited] == ["send"]


def test_in_one_process_a_message_is_the_tensor_itself_and_comes_once():
    t, tensors = Local(), number(1)
    key = ("X", 1, 0)
    assert t.arrived(1, key) is None
    t.send(0, 1, key, tensors)
    assert t.arrived(0, key) is None  # it is for rank 1
    assert t.arrived(1, key) is tensors and t.arrived(1, key) is None


def test_in_one_process_a_collective_waits_for_all_and_keeps_the_order_of_ranks():
    t = Local()
    for _ in range(2):  # it can be met again
        assert t.gather(2, "norm", (0, 2), torch.tensor(2.0)) is None
        assert t.gather(0, "norm", (0, 2), torch.tensor(0.0)) == [0.0, 2.0]
        assert t.gather(2, "norm", (0, 2), torch.tensor(2.0)) == [0.0, 2.0]
        assert not t.met and not t.left


def test_dense_tensors_keep_their_memory_format():
    image = torch.arange(24.0).view(1, 2, 3, 4)
    plain, view = dense(image, channels_last=False)
    assert plain.is_contiguous() and view is plain
    last, view = dense(image, channels_last=True)
    assert last.is_contiguous(memory_format=torch.channels_last) and torch.equal(last, image)
    assert view.is_contiguous() and view.data_ptr() == last.data_ptr()
