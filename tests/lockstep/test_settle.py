"""What ranks still owe at the end, sent at once: the model gets it, and nothing is lost or owed but rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import laconic
from laconic.codecs import by_name
from laconic.errors import GroupError
from laconic.integrations.checks import settling
from lockstep.locals import Point, Rank, close, drawn, run, sgd

SOME = laconic.topk(0.25, memory="update", whole_below=0)
WHOLE = laconic.topk(0.25, memory="update", whole_below=0, scope="model", values="sign", exchange="led")
METHODS = {
    "plain": laconic.celgc(3, send=SOME),
    "every step": laconic.celgc(1, send=SOME),
    "ahead": laconic.celgc(3, restart=None, send=SOME),
    "outer": laconic.celgc(3, outer_rate=0.7, outer_momentum=0.6, restart=0.5, send=SOME),
    "led": laconic.celgc(2, outer_momentum=0.6, restart=None, send=WHOLE),
    "fragments": laconic.diloco(6, fragments=2, delay=1, mix=0.5, send=SOME),
    "sample": laconic.celgc(3, participants=2, send=SOME),
    "sparseloco": laconic.sparseloco(3, k=2, chunk=4),
    "sdagc": laconic.celgc(2, send=laconic.sdagc(momentum=False)),
}


def _settled(rank: Rank, values: str):
    drawn(rank, range(7 + rank.rank))
    rank.rounds.finish()
    seen = rank.stats
    before, owed, speed = rank.anchor, rank.owed, [f.velocity for f in rank.rounds._sync.fragments]
    speed = [None if v is None else v.clone() for v in speed]
    rank.rounds.finish(by_name(values))
    for f, was in zip(rank.rounds._sync.fragments, speed, strict=True):
        assert was is None or torch.equal(f.velocity, was)
    assert torch.equal(rank.x, rank.anchor)
    # How much the method sends is told of its own syncs; bytes are those of all.
    assert rank.stats.density == seen.density
    assert [layer.density for layer in rank.stats.layers] == [layer.density for layer in seen.layers]
    assert rank.stats.wire_bytes > seen.wire_bytes
    return before - rank.anchor, owed, rank.owed, rank.x


@pytest.mark.parametrize("values", ["exact", "sign", "int4"])
@pytest.mark.parametrize("name", METHODS)
def test_the_model_takes_the_mean_of_what_is_owed_less(name, values):
    method = METHODS[name]
    ranks = run(method, 3, partial(_settled, values=values), make=sgd(0.1))
    for _, _, _, x in ranks:
        assert torch.equal(x, ranks[0][3])
    rate = method.local.outer.rate
    moved = ranks[0][0]
    assert moved.norm() > 0
    # What is left fades as ever.
    paid = sum(before - after / method.decay for _, before, after, _ in ranks) / 3
    # Sums of entries of the anchor's size lose digits.
    close(moved, rate * paid, 1e-9)
    for _, before, after, _ in ranks:
        assert before.norm() > 0
        assert after.norm() < before.norm()
        if values == "exact":
            assert not after.any()


def test_with_one_bit_an_entry_it_costs_an_eighth_of_a_byte_an_entry():
    def job(rank: Rank):
        drawn_before = rank.stats
        rank.follow(torch.linspace(-1, 1, 4096))
        rank.rounds.finish()
        synced = rank.stats.wire_bytes
        rank.rounds.finish(by_name("sign"))
        assert drawn_before.wire_bytes == 0
        return rank.stats.wire_bytes - synced

    method = laconic.celgc(1, send=laconic.topk(0.01, memory="update", scope="model", values="sign"))
    said = run(method, 2, job, model=Point(4096))
    # Beside header, scale, and a table by which ranks see that somebody owes something.
    assert said[0] == said[1]
    assert 4096 / 8 < said[0] < 4096 / 8 + 400


def test_where_nobody_owes_anything_nothing_is_sent_but_a_number():
    def job(rank: Rank):
        drawn(rank, range(4))
        rank.rounds.finish(by_name("exact"))
        settled, x = rank.stats.wire_bytes, rank.x
        rank.rounds.finish(by_name("exact"))
        assert torch.equal(rank.x, x)
        return rank.stats.wire_bytes - settled

    # The tables of finish itself are not of the rest.
    def plain(rank: Rank):
        drawn(rank, range(4))
        rank.rounds.finish()
        before = rank.stats.wire_bytes
        rank.rounds.finish()
        return rank.stats.wire_bytes - before

    more = run(METHODS["plain"], 2, job)[0] - run(METHODS["plain"], 2, plain)[0]
    assert 0 < more <= 32


def test_what_is_frozen_stays_where_it_is_and_owed():
    def job(rank: Rank):
        drawn(rank, range(6))
        rank.rounds.finish()
        owed, x = rank.owed[:3], rank.x[:3]
        rank.model.x[0].requires_grad_(False)
        rank.rounds.finish(by_name("exact"))
        assert torch.equal(rank.x[:3], x)
        assert torch.equal(rank.owed[:3], owed)
        assert owed.any()
        return rank.owed[3:]

    assert not any(rest.any() for rest in run(METHODS["ahead"], 2, job))


def test_a_debt_that_cannot_be_paid_is_not_sent_again_and_again():
    """Where only what is frozen owed, each settling sent the whole model, of zeros."""

    def job(rank: Rank):
        drawn(rank, range(6))
        rank.model.x[0].requires_grad_(False)
        rank.rounds.finish(by_name("exact"))
        assert rank.owed[:3].any()
        assert not rank.owed[3:].any()
        before = rank.stats
        rank.rounds.finish(by_name("exact"))
        return rank.stats.syncs - before.syncs, rank.stats.wire_bytes - before.wire_bytes

    assert run(METHODS["ahead"], 2, job, make=sgd(0.1)) == run(METHODS["ahead"], 2, _once_more, make=sgd(0.1))


def _once_more(rank: Rank):
    """What it takes to find that nothing is owed."""
    drawn(rank, range(6))
    rank.rounds.finish(by_name("exact"))
    before = rank.stats
    rank.rounds.finish(by_name("exact"))
    return rank.stats.syncs - before.syncs, rank.stats.wire_bytes - before.wire_bytes


CAT = laconic.cat("bits", gain="curvature")
TUNED = {
    "warmup": replace(SOME, tuner=laconic.Warmup(start=0.5, steps=8)),
    "target": laconic.sdagc(law="target", density=0.1, momentum=False),
    "cat": replace(CAT, compressor=replace(CAT.compressor, whole_below=0)),
}


@pytest.mark.parametrize("name", TUNED)
def test_tuner_and_gauge_hear_nothing_of_it(name):
    def job(rank: Rank, *, values: str | None):
        drawn(rank, range(6))
        rank.rounds.finish()
        assert rank.owed.any()
        rank.rounds.finish(None if values is None else by_name(values))
        state = rank.reducer._state
        return state.tuner, state.setting, state.ledger.seen, state.gauge.state_dict()

    plain, settled = (run(laconic.celgc(2, send=TUNED[name]), 2, partial(job, values=v)) for v in (None, "sign"))
    # A time and a number that is not known are equal to nothing.
    assert repr(_lasting(plain)) == repr(_lasting(settled))


def _lasting(told):
    return [(tuner, setting, replace(seen, pace=None), gauge) for tuner, setting, seen, gauge in told]


def test_a_sync_that_was_dropped_stays_so_to_the_tuner():
    """A good settling after it made the tuner take its numbers for good."""

    def job(rank: Rank):
        drawn(rank, range(5))
        if rank.rank == 1:
            rank.model.x[0].data.fill_(torch.nan)
        drawn(rank, range(5, 6))
        assert rank.reducer._state.ledger.seen.skipped
        rank.rounds.finish(by_name("sign"))
        return rank.reducer._state.ledger.seen.skipped

    assert run(METHODS["plain"], 2, job) == [True, True]


def test_training_goes_on_after_it():
    def job(rank: Rank, *, resumes: bool):
        drawn(rank, range(4))
        rank.rounds.finish(by_name("sign"))
        if resumes:
            rank.load(rank.save())
        drawn(rank, range(4, 11))
        rank.rounds.finish()
        return rank.x

    straight, resumed = (run(METHODS["outer"], 3, partial(job, resumes=again)) for again in (False, True))
    assert all(torch.equal(x, straight[0]) for x in [*straight, *resumed])


@pytest.mark.parametrize(
    ("words", "who"), [(("sign", "exact", "sign"), r"\[1\]"), ((None, "sign", "sign"), r"\[1, 2\]")]
)
def test_ranks_that_settle_in_unlike_ways_say_so_on_every_rank(words, who):
    def job(rank: Rank):
        drawn(rank, range(4))
        word = words[rank.rank]
        with pytest.raises(GroupError, match=rf"ranks {who} settle what they owe.*same settle= on every rank"):
            rank.rounds.finish(None if word is None else by_name(word))
        return True

    assert run(METHODS["plain"], 3, job) == [True] * 3


def test_small_parameters_are_settled_by_a_scale_of_their_own():
    """One scale over the whole model made of small debts what large ones were."""
    loud, quiet = torch.full((64,), 100.0), torch.full((8,), 0.01)

    def job(rank: Rank):
        rank.follow(torch.cat([loud, quiet]))
        rank.rounds.finish()
        owed = rank.owed
        assert owed[64:].abs().max() > 0
        rank.rounds.finish(by_name("sign"))
        assert not rank.owed[64:].any()

    send = laconic.topk(1 / 72, memory="update", scope="model", values="sign", whole_below=0)
    run(laconic.celgc(1, send=send), 2, job, model=Point(64, 8), make=sgd(0.1))


@pytest.mark.parametrize("method", [laconic.dense(), laconic.parallel_clip(1.0), laconic.celgc(4)], ids=repr)
def test_methods_that_never_owe_have_nothing_to_settle(method):
    assert settling(method, "sign") is None


def test_methods_of_every_step_say_what_to_use():
    with pytest.raises(ValueError, match=r"laconic\.celgc\(1, send=laconic\.topk"):
        settling(laconic.topk(0.01), "sign")
    with pytest.raises(ValueError, match="settle must be"):
        settling(METHODS["plain"], "int3")
    assert settling(METHODS["plain"], None) is None
