"""When an exchange is over, no thread of gloo's holds its tensors: one that drops them late may end the process."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from laconic.collectives import AllGather, AllReduce
from laconic.transports import ProcessGroupTransport, process_group


def test_it_waits_until_another_holder_has_let_go():
    tensor = torch.zeros(3)
    before = process_group._holders(tensor)
    held, gone = [tensor.view(-1)], threading.Event()

    def let_go() -> None:
        # In this order: the wait ends between the two.
        gone.set()
        held.clear()

    timer = threading.Timer(0.05, let_go)
    timer.start()
    process_group._take_back([(tensor, before)])
    assert gone.is_set()
    assert process_group._holders(tensor) == before
    timer.join()


def test_it_does_not_wait_for_ever():
    tensor = torch.zeros(3)
    before = process_group._holders(tensor)
    held = tensor.view(-1)
    lent = [(tensor, before)]
    process_group._take_back(lent)
    assert lent == []
    assert held.numel() == 3


def _exchanges(group, rounds: int) -> int:
    """Count the tensors that were still held by somebody else after the wait; also by our own side."""
    transport = ProcessGroupTransport(group, torch.device("cpu"))
    take_back, left = process_group._take_back, []

    def watched(lent) -> None:
        copy = list(lent)
        take_back(lent)
        left.extend(t for t, count in copy if process_group._holders(t) > count)

    def steps():
        first = yield AllGather(send=torch.ones(1000) * dist.get_rank(group))
        total = yield AllReduce(send=first[1].clone())
        return total[:10]

    process_group._take_back = watched
    try:
        for _ in range(rounds):
            futures = [transport.start(steps(), label="an exchange") for _ in range(3)]
            transport.drain()
            assert all(future.value().sum() == 20 for future in futures)
    finally:
        process_group._take_back = take_back
    return len(left)


def test_after_every_round_of_an_exchange_all_tensors_are_ours_again(pool):
    assert pool.run(2, _exchanges, 20) == [0, 0]
