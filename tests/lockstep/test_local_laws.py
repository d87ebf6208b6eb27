"""The laws of local steps: agreement, identity, conservation, the bound on drifts, nothing poisoned."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import laconic
from laconic.methods import METHODS
from lockstep.locals import LOCAL, Point, Rank, close, draw, drawn, run, sgd, small

SENDS = {
    "whole": None,
    "topk": laconic.topk(0.25, whole_below=0),
    "sdagc": laconic.sdagc(whole_below=0, scope="layer", values="exact"),
}
OWN_WAY = {"sparseloco", "spartan", "parallel_clip"}
CASES = [(name, send) for name in LOCAL for send in SENDS if send == "whole" or name not in OWN_WAY]


def _method(name: str, send: str, **more: object) -> laconic.Method:
    return small(name, **more | ({} if name in OWN_WAY else {"send": SENDS[send]}))


def _sent(share: float, memory: str = "update") -> laconic.Method:
    return laconic.topk(share, memory=memory, whole_below=0)


@pytest.mark.parametrize(("name", "send"), CASES)
def test_models_are_equal_to_the_bit_after_every_sync(name, send):
    def job(rank: Rank):
        seen = []
        for step in range(14):
            rank.follow(draw(rank.rank, step), loss=2.0 + rank.rank)
            if rank.now.in_round == 0:
                seen.append((step, rank.x if rank.method.local.restart == 0 else rank.anchor))
        return seen, rank.now.number

    seen = run(_method(name, send), 3, job, make=sgd(0.1, momentum=0.9))
    assert len(seen[0][0]) >= 3
    for other, number in seen[1:]:
        assert number == seen[0][1]
        for (step, a), (theirs, b) in zip(seen[0][0], other, strict=True):
            assert step == theirs
            assert torch.equal(a, b), step


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_sync_after_every_step_is_synchronous_sgd(momentum):
    """With momentum too: the mean of velocities is the velocity of the mean."""
    ours = run(laconic.celgc(every=1), 3, lambda r: drawn(r, range(12)), make=sgd(0.1, momentum=momentum))
    x = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=momentum)
    for step in range(12):
        x.grad = sum(draw(rank, step) for rank in range(3)) / 3
        optimizer.step()
        close(ours[0][step], x.detach())


@pytest.mark.parametrize("every", [1, 4])
def test_one_rank_is_clipped_sgd(every):
    (ours,) = run(
        laconic.celgc(every=every, clip=2.0), 1, lambda r: drawn(r, range(12)), make=sgd(0.1, momentum=0.5)
    )
    x = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=0.5)
    for step in range(12):
        x.grad = draw(0, step)
        # torch divides by the norm plus 1e-6.
        torch.nn.utils.clip_grad_norm_([x], 2.0)
        optimizer.step()
        close(ours[step], x.detach(), 5e-6)


@pytest.mark.parametrize("name", ["celgc", "episode", "diloco"])
@pytest.mark.parametrize("memory", ["update", "gradient", "none"])
def test_with_everything_sent_it_is_its_dense_parent(name, memory):
    sent = laconic.topk(1.0, memory=memory)
    ours = run(METHODS[name](every=3, clip=1.0, send=sent), 3, lambda r: drawn(r, range(12)))
    dense = run(METHODS[name](every=3, clip=1.0), 3, lambda r: drawn(r, range(12)))
    for a, b in zip(ours[0], dense[0], strict=True):
        close(a, b)


@pytest.mark.parametrize("memory", ["update", "gradient"])
@pytest.mark.parametrize("restart", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("stops", [(), (4, 6, 11)], ids=["through", "with finishes"])
def test_what_anchors_moved_and_ranks_owe_is_what_ranks_walked(memory, restart, stops):
    """Nothing is lost, however often ranks finish in between."""
    rate, steps = 0.1, 18

    def job(rank: Rank):
        walked = torch.zeros(8, dtype=torch.float64)
        for step in range(steps):
            before = rank.x
            rank.follow(draw(rank.rank, step))
            walked += rate * draw(rank.rank, step)
            if rank.now.in_round:
                close(before - rank.x, rate * draw(rank.rank, step))
            if step in stops:
                rank.rounds.finish()
        rank.rounds.finish()
        return walked, rank.anchor, rank.owed

    ends = run(laconic.celgc(every=3, send=_sent(0.25, memory), restart=restart), 3, job, make=sgd(rate))
    walked, owed = sum(e[0] for e in ends), sum(e[2] for e in ends)
    assert float(owed.norm()) > 0.01
    close(-3 * ends[0][1] + owed, walked)


@pytest.mark.parametrize("restart", [0.25, 1.0])
def test_a_round_begins_at_the_anchor_minus_a_share_of_what_is_owed(restart):
    def job(rank: Rank):
        for step in range(9):
            rank.follow(draw(rank.rank, step))
            if rank.now.in_round == 0:
                assert float(rank.owed.norm()) > 0
                close(rank.x, rank.anchor - restart * rank.owed)
        return rank.x

    a, b = run(laconic.celgc(every=3, send=_sent(0.25), restart=restart), 2, job)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("every", [1, 3, 8])
@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_no_rank_is_farther_from_the_mean_than_the_bound(ranks, every, scale):
    def job(rank: Rank):
        seen = []
        for step in range(3 * every):
            # A schedule in the middle of a round: the bound adds up what each step could go.
            rank.optimizer.param_groups[0]["lr"] = rate = 0.5 / (1 + step)
            before = rank.x
            rank.follow(draw(rank.rank, step, scale=scale))
            if rank.now.in_round == 0:
                seen.append((rank.stats.drift, rank.stats.drift_bound))
            else:
                assert float((rank.x - before).norm()) <= 1.5 * rate + 1e-12
        return seen

    for seen in run(laconic.celgc(every=every, clip=1.5), ranks, job):
        for number, (drift, bound) in enumerate(seen):
            reach = sum(1.5 * 0.5 / (1 + s) for s in range(number * every, (number + 1) * every))
            assert bound == pytest.approx(2 * reach)
            assert drift <= bound + 1e-12


def test_the_bound_is_infinite_without_clipping():
    for stats in run(laconic.local_sgd(2), 2, lambda r: (drawn(r, range(2)), r.stats)[1]):
        assert stats.drift > 0
        assert stats.drift_bound == math.inf


@pytest.mark.parametrize("nesterov", [True, False])
def test_the_outer_step_is_torchs_sgd_along_the_mean_drift(nesterov):
    method = laconic.diloco(every=3, rate=0.7, momentum=0.9)
    method = replace(method, local=replace(method.local, outer=replace(method.local.outer, nesterov=nesterov)))
    ours = run(method, 2, lambda r: drawn(r, range(15)))
    x = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    outer = torch.optim.SGD([x], lr=0.7, momentum=0.9, nesterov=nesterov)
    for number in range(5):
        steps = range(3 * number, 3 * number + 3)
        x.grad = sum(0.1 * draw(rank, step) for rank in range(2) for step in steps) / 2
        outer.step()
        close(ours[0][3 * number + 2], x.detach())


@pytest.mark.parametrize("over", ["ranks", "senders"])
def test_sparseloco_by_the_obvious_loop(over):
    """e <- beta e + D; send the largest of each chunk; e <- e - sent; x <- x - the mean."""
    beta, ranks = 0.5, 3
    method = laconic.sparseloco(every=2, k=1, chunk=4, values="exact", decay=beta, rate=0.9, over=over)
    # A vector as small as this would be sent whole.
    method = replace(method, compressor=replace(method.compressor, whole_below=0))
    ours = run(method, ranks, lambda r: drawn(r, range(12)), model=Point(8))
    x, owed = torch.zeros(8, dtype=torch.float64), torch.zeros(ranks, 8, dtype=torch.float64)
    for number in range(6):
        sent = torch.zeros_like(owed)
        for rank in range(ranks):
            owed[rank] = beta * owed[rank] + sum(0.1 * draw(rank, 2 * number + i) for i in range(2))
            for chunk in (slice(0, 4), slice(4, 8)):
                at = chunk.start + int(owed[rank][chunk].abs().argmax())
                sent[rank, at] = owed[rank, at]
        owed -= sent
        count = (sent != 0).sum(0).clamp(min=1) if over == "senders" else ranks
        x = x - 0.9 * sent.sum(0) / count
        close(ours[0][2 * number + 1], x)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}])
def test_a_whole_update_never_exceeds_gamma(settings):
    def job(rank: Rank):
        lengths = []
        for step in range(10):
            before = rank.x
            rank.follow(draw(rank.rank, step, scale=2.0))
            lengths.append(float((rank.x - before).norm()))
        return lengths, rank.now.clipped

    make = sgd(0.1, **settings)
    for lengths, clipped in run(laconic.celgc(every=64, clip=2.0, norm_of="update"), 2, job, make=make):
        assert max(lengths) <= 0.2 * (1 + 1e-12)
        assert clipped > 5
    # The norm of the gradient alone does not hold back what momentum adds.
    assert max(max(le) for le, _ in run(laconic.celgc(every=64, clip=2.0), 2, job, make=make)) > 0.3


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_by_its_rank_alone(name, bad):
    local = small(name, **({"start": 0} if name == "post_local" else {}))

    def job(rank: Rank):
        taken = []
        for step in range(16):
            grad = draw(rank.rank, step)
            if rank.rank == 1 and step in (2, 3, 4, 9):
                grad[3] = bad
            taken.append(rank.follow(grad))
        rank.rounds.finish()
        return rank.x, rank.now.step, rank.now.number, rank.now.skipped, taken

    ends = run(local, 3, job, make=sgd(0.1, momentum=0.9))
    assert len({end[1:3] for end in ends}) == 1
    for x, *_ in ends:
        assert bool(torch.isfinite(x).all())
        assert torch.equal(x, ends[0][0])
    if name == "parallel_clip":
        # The mean is everybody's.
        assert [end[3] for end in ends] == [4, 4, 4]
    elif name != "episode_pp":
        # One of EPISODE's four only measured.
        assert [end[3] for end in ends] == [0, 3 if name == "episode" else 4, 0]
        assert not any(ends[1][4][i] for i in (2, 3, 4, 9))


@pytest.mark.parametrize("name", ["celgc", "episode", "diloco", "sparseloco", "spartan"])
def test_a_model_that_is_not_finite_is_dropped_by_all(name):
    def job(rank: Rank):
        while rank.now.number < 2:
            rank.follow(draw(rank.rank, rank.now.step))
        before, owed = rank.anchor, rank.owed if rank.method.memory != "none" else None
        rank.follow(draw(rank.rank, 70))
        if rank.rank == 1:
            with torch.no_grad():
                rank.model.x[1].fill_(math.inf)
        while rank.now.number < 3:
            rank.follow(draw(rank.rank, rank.now.step))
        dropped = torch.equal(rank.anchor, before) and (owed is None or torch.equal(rank.owed, owed))
        state, drift = len(rank.optimizer.state), rank.now.drift
        while rank.now.number < 5:
            rank.follow(draw(rank.rank, rank.now.step))
        rank.rounds.finish()
        return dropped, state, drift, rank.stats.skipped_steps, rank.x

    ends = run(small(name), 3, job, make=sgd(0.1, momentum=0.9))
    for dropped, _, drift, skipped, x in ends:
        assert dropped
        assert math.isnan(drift)
        assert skipped == 1
        assert bool(torch.isfinite(x).all())
        assert torch.equal(x, ends[0][-1])
    # What brought the rank there was in its momentum.
    assert [state for _, state, *_ in ends] == [3, 0, 3]


@pytest.mark.parametrize("name", ["celgc", "sparseloco", "post_local"])
def test_the_model_all_agree_on_can_be_looked_at_and_is_given_back(name):
    def job(rank: Rank):
        seen = []
        for step in range(8):
            rank.follow(draw(rank.rank, step))
            mine, sent = rank.x, rank.stats.wire_bytes
            with rank.rounds.averaged():
                seen.append((mine, rank.x))
            assert torch.equal(rank.x, mine)
            assert rank.stats.wire_bytes == sent
        return seen, rank.stats.look_bytes

    a, b = run(small(name), 2, job)
    for (mine, looked), (theirs, also) in zip(a[0], b[0], strict=True):
        assert torch.equal(looked, also)
        close(looked, (mine + theirs) / 2)
    assert a[1] > 0


def test_bytes_are_those_handed_to_the_collectives():
    def job(rank: Rank):
        drawn(rank, range(7))
        return rank.stats.wire_bytes, rank.port.wire_bytes, rank.stats.collectives, rank.port.collectives

    for name in LOCAL:
        for ours, true, collectives, counted in run(small(name), 3, job):
            assert (ours, collectives) == (true, counted), name
