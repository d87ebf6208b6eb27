"""A sample of ranks takes part in a round: who, what they send, and what the others have afterwards."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.local import LocalSteps
from laconic.local.steps import participants_of
from lockstep.locals import Point, Rank, close, draw, drawn, run, sgd

TOPK = laconic.topk(0.25, whole_below=0)


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_sample_is_seeded_and_goes_round(world_size):
    local = LocalSteps(participants=2, seed=5)
    samples = [participants_of(local, number, world_size) for number in range(200)]
    assert samples == [participants_of(local, number, world_size) for number in range(200)]
    if world_size == 2:
        assert set(samples) == {None}
        return
    assert all(len(set(s)) == 2 and list(s) == sorted(s) and set(s) <= set(range(world_size)) for s in samples)
    counts = [sum(rank in s for s in samples) for rank in range(world_size)]
    # Each takes part in about its share of rounds.
    assert all(0.6 * 400 / world_size < count < 1.5 * 400 / world_size for count in counts)
    assert samples != [participants_of(LocalSteps(participants=2, seed=6), n, world_size) for n in range(200)]


@pytest.mark.parametrize("send", [None, TOPK], ids=["whole", "topk"])
@pytest.mark.parametrize("participants", [1, 2, 3])
def test_those_that_do_not_take_part_send_no_drift_and_have_the_same_model(send, participants):
    def job(rank: Rank):
        rows = []
        for step in range(12):
            senders, before = rank.rounds.senders, rank.stats.wire_bytes - rank.rounds.meeting.traffic.wire_bytes
            start = rank.x
            taken = rank.follow(draw(rank.rank, step))
            assert taken == (rank.rank in senders)
            if rank.now.in_round:
                assert torch.equal(start, rank.x) == (not taken)
            else:
                sent = rank.stats.wire_bytes - rank.rounds.meeting.traffic.wire_bytes - before
                rows.append((senders, sent, rank.x))
        return rows

    ends = run(laconic.celgc(3, participants=participants, seed=2, send=send), 4, job)
    for number in range(4):
        senders, _, x = ends[0][number]
        assert len(senders) == participants
        for rank in range(4):
            assert ends[rank][number][0] == senders
            assert torch.equal(ends[rank][number][2], x)
            assert (ends[rank][number][1] > 0) == (rank in senders)


def test_the_new_model_is_the_mean_of_those_that_took_part():
    def job(rank: Rank):
        rows = []
        for number in range(5):
            senders = rank.rounds.senders
            drawn(rank, range(3 * number, 3 * number + 3))
            rows.append((senders, rank.x))
        return rows

    ends = run(laconic.celgc(3, clip=1.0, participants=2, seed=1), 4, job)
    x = torch.zeros(8, dtype=torch.float64)
    for number, (senders, ours) in enumerate(ends[0]):
        for rank in senders:
            for step in range(3 * number, 3 * number + 3):
                g = draw(rank, step)
                x = x - 0.1 * g / max(1.0, float(g.norm())) / len(senders)
        close(ours, x)


def test_what_is_owed_waits_for_the_next_time_a_rank_takes_part():
    def job(rank: Rank):
        rows = []
        for number in range(8):
            before, senders = rank.owed, rank.rounds.senders
            drawn(rank, range(2 * number, 2 * number + 2))
            rows.append((rank.rank in senders, torch.equal(before, rank.owed)))
        return rows

    for rows in run(laconic.celgc(2, participants=2, send=TOPK), 3, job):
        assert len({took for took, _ in rows}) == 2
        assert all(took != same for took, same in rows)


def test_conservation_with_a_sample_of_ranks():
    """Anchors move by the mean of those that took part."""

    def job(rank: Rank):
        walked, moved = torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
        for number in range(8):
            before, senders = rank.anchor, rank.rounds.senders
            drawn(rank, range(2 * number, 2 * number + 2))
            moved += len(senders) * (before - rank.anchor)
            if rank.rank in senders:
                walked += 0.1 * sum(draw(rank.rank, s) for s in range(2 * number, 2 * number + 2))
        return walked, moved, rank.owed

    ends = run(laconic.celgc(2, participants=2, send=TOPK), 4, job)
    close(sum(e[0] for e in ends), ends[0][1] + sum(e[2] for e in ends))


@pytest.mark.parametrize("norm_by", ["max", "global_average"])
def test_the_mean_gradient_is_that_of_those_that_take_part(norm_by):
    def job(rank: Rank):
        lengths = []
        for _ in range(3):
            senders, before = rank.rounds.senders, rank.x
            rank.follow(4.0 * (1 + rank.rank))
            lengths.append((senders, (before - rank.x).item()))
            rank.follow(0.0)
        return lengths

    method = laconic.celgc(2, clip=1.0, norm_by=norm_by, participants=2, seed=4)
    ends = run(method, 3, job, model=Point(1), make=sgd(1.0))
    for rank, lengths in enumerate(ends):
        for senders, length in lengths:
            mean = sum(4.0 * (1 + r) for r in senders) / 2
            mine = 4.0 * (1 + rank)
            used = max(mean, mine) if norm_by == "max" else mean
            assert length == pytest.approx(mine / used if rank in senders else 0.0)


def test_as_many_as_there_are_is_all():
    method = laconic.celgc(3, participants=4)
    assert run(method, 3, lambda r: r.rounds.senders) == [None] * 3
    ours, plain = (run(m, 3, lambda r: drawn(r, range(9))) for m in (method, laconic.celgc(3)))
    for a, b in zip(ours[0], plain[0], strict=True):
        close(a, b)
