"""A lockstep world with nodes: who takes part in what is asked for, and who hands bytes over."""

from __future__ import annotations

import pytest
import torch

from laconic.collectives import AllGather, AllReduce, AllToAll
from laconic.errors import LaconicError
from laconic.transports import Lockstep


def test_what_a_transport_is_asked_for_is_answered_within_nodes_and_among_leaders():
    world, got = Lockstep(4, node_size=2), {}

    def ask(rank):
        one = torch.tensor([rank], dtype=torch.uint8)
        rows = yield AllGather(send=one, among="leaders")
        summed = yield AllReduce(send=torch.tensor([float(rank)]), among="node")
        given = one.repeat(2) if rank % 2 == 0 else one[:0]
        dealt = yield AllToAll(send=given, given=(1, 1), heard=(1, 1), among="leaders")
        told = yield AllGather(send=one if rank % 2 == 0 else one[:0], senders=(0,), size=1, among="node")
        got[rank] = (rows.tolist(), summed.tolist(), dealt.tolist(), told.tolist())

    for port in world.ports:
        port.start(ask(port.rank), label="the exam")
    for port in world.ports:
        port.drain()
    assert got == {
        0: ([[0], [2]], [1.0], [0, 2], [[0]]),
        1: ([], [1.0], [], [[0]]),
        2: ([[0], [2]], [5.0], [0, 2], [[2]]),
        3: ([], [5.0], [], [[2]]),
    }
    assert [port.wire_bytes for port in world.ports] == [3, 0, 3, 0]
    assert [port.node_bytes for port in world.ports] == [5, 4, 5, 4]


def test_ranks_that_ask_among_others_cannot_go_on():
    world = Lockstep(2, node_size=2)

    def ask(among):
        yield AllReduce(send=torch.zeros(1), among=among)

    world.ports[0].start(ask("node"), label="one")
    world.ports[1].start(ask("world"), label="two")
    with pytest.raises(LaconicError, match=r"agree to talk.*among node"):
        world.run()
