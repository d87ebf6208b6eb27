"""Ranks with unlike numbers of batches: all come to an end, with one model, and can go on."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import laconic
from covering import in_turn
from lockstep.locals import LOCAL, Point, Rank, close, draw, drawn, run, sgd, small

# Of two methods that follow each other one is tried with these, the other with those.
COUNTS = [
    [(0, 5, 11), (3, 3, 4), (6, 6, 6), (2, 2, 2)],
    [(7, 1, 4), (13, 0, 0), (0, 0, 0), (1, 9, 8)],
]
STREAMED = {
    "fragments": laconic.diloco(6, fragments=3),
    "delay": laconic.diloco(4, delay=2),
    "fragments, delay": laconic.diloco(6, fragments=2, delay=2, mix=0.5),
    "fragments, delay, some sent": laconic.diloco(6, fragments=2, delay=1, send=laconic.topk(0.25, whole_below=0)),
}
METHODS_TOLD = {
    **{name: small(name) for name in LOCAL},
    **STREAMED,
    "max": laconic.celgc(3, clip=1.0, norm_by="max"),
    "max of a sample": laconic.celgc(3, clip=1.0, norm_by="max", participants=2),
    "sample": laconic.celgc(3, participants=1, send=laconic.topk(0.25, whole_below=0)),
    "averaged momentum": laconic.celgc(3, optimizer_state="average"),
    "growing": laconic.celgc(4, period="growing", over_steps=10),
    "adacomm": laconic.celgc(4, period="adacomm"),
    "drift": laconic.celgc(2, period="drift"),
    "restart": laconic.celgc(3, send=laconic.topk(0.25, memory="update", whole_below=0), restart=0.5),
}


@pytest.mark.parametrize(("name", "several"), in_turn(list(METHODS_TOLD), COUNTS))
def test_all_come_to_an_end_with_one_model_and_can_go_on(name, several):
    def job(rank: Rank, counts: tuple[int, ...]):
        seen = []
        for mine in (counts[rank.rank], counts[-1 - rank.rank], 4):
            drawn(rank, range(rank.now.step, rank.now.step + mine))
            rank.rounds.finish()
            assert rank.now.in_round == 0
            seen.append(rank.x)
            assert torch.equal(rank.x, rank.anchor) or rank.rounds.averages
        return seen, rank.now.number

    for counts in several:
        ends = run(METHODS_TOLD[name], 3, partial(job, counts=counts), make=sgd(0.1, momentum=0.5))
        assert len({number for _, number in ends}) == 1, counts
        for seen, _ in ends:
            for ours, first in zip(seen, ends[0][0], strict=True):
                assert torch.equal(ours, first), counts


@pytest.mark.parametrize("send", [None, laconic.topk(1.0)], ids=["whole", "topk"])
def test_the_mean_is_over_those_that_worked(send):
    batches = (1, 2, 5)

    def job(rank: Rank):
        for _ in range(batches[rank.rank]):
            rank.follow(float(1 + rank.rank))
        rank.rounds.finish()
        return -rank.x.item(), rank.now.number

    # Rounds of 2: (1 + 4 + 6) / 3, then 6 and 3 of the last rank alone.
    for x, rounds in run(laconic.celgc(2, send=send), 3, job, model=Point(1), make=sgd(1.0)):
        assert x == pytest.approx(11 / 3 + 6 + 3)
        assert rounds >= 3


def test_what_compressed_drifts_leave_is_not_lost_by_ranks_that_came_first():
    batches = (1, 4, 9)

    def job(rank: Rank):
        drawn(rank, range(batches[rank.rank]))
        rank.rounds.finish()
        before = rank.anchor, rank.owed
        rank.rounds.finish()
        assert torch.equal(rank.anchor, before[0])
        assert torch.equal(rank.owed, before[1])
        return float(rank.owed.norm())

    assert all(owed > 0 for owed in run(laconic.celgc(3, send=laconic.topk(0.25, whole_below=0)), 3, job))


@pytest.mark.parametrize("fragments", [2, 3])
@pytest.mark.parametrize("later", ["at once", "at the period's end"])
def test_a_fragments_mean_is_over_those_that_worked_since_its_last_sync(fragments, later):
    """A rank that stops between the syncs of two fragments has walked in the second one too."""
    period, stride = 6, 6 // fragments
    steps = (stride, stride + 1 if later == "at once" else period)

    def job(rank: Rank):
        for _ in range(steps[rank.rank]):
            rank.follow(float(1 + rank.rank))
        rank.rounds.finish()
        return rank.x

    method = laconic.diloco(period, rate=1.0, momentum=0.0, fragments=fragments)
    first, second = run(method, 2, job, model=Point(*[1] * fragments), make=sgd(1.0))
    assert torch.equal(first, second)
    # Both count in a fragment's first sync, after which only the second one walks, 2 a step.
    syncs = [min(stride * (i + 1), steps[1]) for i in range(fragments)]
    assert (-first).tolist() == pytest.approx([(stride + 2 * at) / 2 + 2 * (steps[1] - at) for at in syncs])


def test_steps_that_were_dropped_while_an_exchange_was_under_way_are_no_work():
    def job(rank: Rank):
        for _ in range(4 + 4 * rank.rank):
            rank.follow(float(1 + rank.rank))
        rank.rounds.finish()
        return -rank.x.item()

    method = laconic.diloco(4, rate=1.0, momentum=0.0, delay=2)
    # Two steps of both, then two of the second alone; the others came after an exchange had begun.
    assert run(method, 2, job, model=Point(1), make=sgd(1.0)) == [3.0 + 4.0] * 2


def test_a_rank_that_was_mixed_with_the_anchor_counts_until_it_is_there():
    def job(rank: Rank):
        for _ in range(2 + 2 * rank.rank):
            rank.follow(float(1 + rank.rank))
        rank.rounds.finish()
        return -rank.x.item()

    # The first rank stops half way to the anchor, at 2.5; the second goes from 3.5 to 7.5: the mean is 5.
    assert (
        run(laconic.diloco(2, rate=1.0, momentum=0.0, mix=0.5), 2, job, model=Point(1), make=sgd(1.0)) == [5.0] * 2
    )


def test_while_gradients_are_averaged_a_step_is_the_mean_of_those_that_are_there():
    batches = (1, 3)

    def job(rank: Rank):
        for _ in range(batches[rank.rank]):
            rank.follow(float(1 + 2 * rank.rank))
        rank.rounds.finish()
        return -rank.x.item(), rank.now.step

    for method in (laconic.post_local(2, start=10), laconic.post_local(2, start=3), laconic.parallel_clip()):
        assert run(method, 2, job, model=Point(1), make=sgd(1.0)) == [(8.0, 3), (8.0, 3)]


def test_local_steps_go_on_from_the_model_of_those_that_were_there():
    """A rank stops while gradients are averaged; the other one goes on to local steps."""
    batches = (1, 5)

    def job(rank: Rank):
        for _ in range(batches[rank.rank]):
            rank.follow(float(1 + 2 * rank.rank))
        rank.rounds.finish()
        return -rank.x.item()

    # 2, then 3 twice, then a round of two local steps of the second rank alone.
    assert run(laconic.post_local(2, start=3), 2, job, model=Point(1), make=sgd(1.0)) == [14.0, 14.0]


def test_finishing_twice_changes_nothing():
    def job(rank: Rank):
        drawn(rank, range(4))
        rank.rounds.finish()
        before = rank.x
        rank.rounds.finish()
        return before, rank.x

    for before, after in run(laconic.celgc(3, clip=1.0), 2, job):
        assert torch.equal(before, after)


def test_one_who_leaves_without_finishing_is_named():
    def job(rank: Rank):
        drawn(rank, range(3 + 3 * rank.rank))

    with pytest.raises(laconic.LaconicError, match="left"):
        run(laconic.celgc(3), 2, job)


def test_a_rank_without_batches_does_not_count_in_the_mean_gradient():
    """norm_by='max' measures the mean at a round's first step: of those that have a gradient."""
    batches = (3, 6)

    def job(rank: Rank):
        for _ in range(batches[rank.rank]):
            rank.follow(draw(0, 0))
        rank.rounds.finish()
        return rank.x

    method = laconic.celgc(3, clip=1.0, norm_by="global_average")
    for x in run(method, 2, job, make=sgd(1.0)):
        close(x, -6 * draw(0, 0) / draw(0, 0).norm())
