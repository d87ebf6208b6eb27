"""``link.waits()`` over gloo: a rank that sleeps is the one the others wait for; steps send what they did."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

import laconic
from models import build, train

# Far more than steps of so small a model take, on a busy machine too.
SLEEP_SECONDS = 0.4


def _with_a_slow_rank(group, kind, method, slow):
    """Waits of a span in which a rank sleeps in every step, and what stats have before and after it."""

    def sleep() -> None:
        if dist.get_rank(group) == slow:
            time.sleep(SLEEP_SECONDS)

    model, optimizer, link = build(group, kind, method)
    train(model, optimizer, group, range(2))
    link.waits()
    before = link.stats
    train(model, optimizer, group, range(2, 5), after=sleep)
    train(model, optimizer, group, range(5, 6))
    sent = link.stats
    found = link.waits()
    after = link.stats
    link.detach()
    return found, after.waits, after.wire_bytes - sent.wire_bytes, after.look_bytes - before.look_bytes


@pytest.mark.parametrize(
    ("kind", "method"), [("ddp", laconic.topk(0.05)), ("plain", laconic.celgc(every=1, clip=1.0))]
)
def test_a_rank_that_sleeps_is_named_on_every_rank(pool, kind, method):
    ranks = pool.run(3, _with_a_slow_rank, kind, method, 1)
    found = ranks[0][0]
    assert (found.slowest, found.waiting) == (1, (0, 2))
    assert str(found).startswith("ranks 0 and 2 waited ")
    assert found.of_seconds >= 3 * SLEEP_SECONDS
    # The same on all ranks, kept in stats, and counted apart: two numbers a rank.
    assert [rank[:2] for rank in ranks] == [(found, found)] * 3
    assert [rank[2:] for rank in ranks] == [(0, 24)] * 3


def _weights_with_and_without(group):
    ended = []
    for asks in (False, True):
        model, optimizer, link = build(group, "ddp", laconic.topk(0.05))
        seen = train(model, optimizer, group, range(5), after=link.waits if asks else None)
        ended.append((seen[-1], link.stats.wire_bytes))
        link.detach()
    return ended


def test_asking_changes_neither_bits_nor_bytes_of_a_run(pool):
    for without, asked in pool.run(2, _weights_with_and_without):
        assert without == asked


def _too_late(group):
    _, _, link = build(group, "plain", laconic.topk(0.05))
    before = link.stats.waits
    link.detach()
    with pytest.raises(laconic.LaconicError, match="after detach"):
        link.waits()
    return before


def test_there_is_none_before_the_first_call_and_a_link_that_was_detached_is_not_asked(pool):
    assert pool.run(2, _too_late) == [None, None]


def test_one_rank_alone_waits_for_nobody(pool):
    ((found, *_),) = pool.run(1, _with_a_slow_rank, "plain", laconic.topk(0.05), 0)
    assert found.slowest is None
