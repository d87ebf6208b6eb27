"""A saved state in the middle of a round goes on with the same bits."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import laconic
from lockstep.locals import LOCAL, Rank, draw, run, sgd, small

METHODS_SAVED = {
    **{name: small(name) for name in LOCAL},
    "compressed": laconic.celgc(4, clip=1.0, send=laconic.topk(0.25, whole_below=0)),
    "sdagc": laconic.celgc(4, send=laconic.sdagc(whole_below=0, scope="layer", values="exact")),
    "restart": laconic.celgc(4, send=laconic.topk(0.25, memory="update", whole_below=0), restart=0.5),
    "max": laconic.celgc(4, clip=1.0, norm_by="max"),
    "update": laconic.celgc(4, clip=1.0, norm_of="update"),
    "sample": laconic.celgc(3, participants=1),
    "growing": laconic.celgc(6, period="growing", over_steps=12),
    "adacomm": laconic.celgc(4, period="adacomm"),
    "drift": laconic.celgc(2, period="drift"),
    "fragments": laconic.diloco(6, fragments=2),
    "delay": laconic.diloco(4, delay=2, mix=0.25),
    "both": laconic.diloco(6, fragments=2, delay=2, send=laconic.topk(0.5, whole_below=0)),
    "averaged": laconic.celgc(3, optimizer_state="average"),
    "reset": laconic.celgc(3, optimizer_state="reset"),
}
MAKES = {
    "sgd": sgd(0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
}
SAVED_AT = {"sgd": (0, 1, 5, 6, 10), "adam": (7,)}


def _on(rank: Rank, steps: range) -> list[torch.Tensor]:
    seen = []
    for step in steps:
        rank.follow(draw(rank.rank, step), loss=3.0 / (1 + step) + rank.rank)
        seen.append(rank.x)
    return seen


@pytest.mark.parametrize("optimizer", MAKES)
@pytest.mark.parametrize("name", METHODS_SAVED)
def test_a_saved_state_goes_on_with_the_same_bits(name, optimizer):
    def saving(rank: Rank):
        saved, seen = {}, []
        for step in range(16):
            if step in SAVED_AT[optimizer]:
                # Saving waits for what is under way and must not change what comes.
                saved[step] = rank.save()
            seen += _on(rank, range(step, step + 1))
        rank.rounds.finish()
        return saved, seen, rank.x, rank.stats

    def resumed(rank: Rank, at: int | None):
        if at is not None:
            rank.load(ends[rank.rank][0][at])
        seen = _on(rank, range(at or 0, 16))
        rank.rounds.finish()
        return seen, rank.x, rank.stats

    method, make = METHODS_SAVED[name], MAKES[optimizer]
    ends = run(method, 3, saving, make=make)
    # None: a run that was neither saved nor loaded.
    for at in (None, *SAVED_AT[optimizer]):
        again = run(method, 3, partial(resumed, at=at), make=make)
        for (_, seen, last, stats), (ours, our_last, our_stats) in zip(ends, again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(seen[at or 0 :], ours, strict=True)), at
            assert torch.equal(last, our_last), at
            for what in ("steps", "syncs", "skipped_steps", "wire_bytes", "collectives", "clipped_share", "every"):
                assert getattr(stats, what) == getattr(our_stats, what), (what, at)
            assert stats.drift == our_stats.drift
            assert stats.drift_bound == our_stats.drift_bound


def test_a_state_is_copied():
    def job(rank: Rank):
        _on(rank, range(4))
        saved = rank.rounds.state_dict()
        before = {n: v.clone() for n, v in saved["sync"]["fragments"][0]["anchor"].items()}
        _on(rank, range(4, 9))
        return saved["sync"]["fragments"][0]["anchor"], before

    for now, before in run(laconic.diloco(3), 2, job):
        assert all(torch.equal(now[n], before[n]) for n in before)


@pytest.mark.parametrize(
    ("saver", "loader", "says"),
    [
        ("celgc", "diloco", "another outer step"),
        ("episode", "celgc", "another method"),
        ("celgc", "fragments", "other fragments"),
        ("episode", "episode_pp", "another method"),
    ],
)
def test_the_state_of_another_method_is_refused(saver, loader, says):
    saved = run(METHODS_SAVED[saver], 2, lambda r: (_on(r, range(4)), r.save())[1])

    def job(rank: Rank):
        with pytest.raises(ValueError, match=says):
            rank.rounds.check(saved[rank.rank]["rounds"])
        with pytest.raises(ValueError, match="lack"):
            rank.rounds.check({})

    run(METHODS_SAVED[loader], 2, job)


def test_ranks_that_loaded_unlike_rounds_are_told():
    def save(rank: Rank):
        early = rank.save()
        _on(rank, range(4))
        return early, rank.save()

    saved = run(laconic.celgc(4), 2, save)

    def job(rank: Rank):
        rank.load(saved[rank.rank][rank.rank])
        _on(rank, range(4))

    with pytest.raises(laconic.LaconicError, match=r"unlike rounds.*Load the checkpoint of the same step"):
        run(laconic.celgc(4), 2, job)


def test_a_state_that_held_something_back_goes_on_without_doing_so():
    """Loaded with another restart, ranks begin at the anchor from the next sync on, all of them alike."""
    send = laconic.topk(0.25, memory="update", whole_below=0)

    def saving(rank: Rank):
        _on(rank, range(4))
        return rank.save(), rank.anchor

    def going_on(rank: Rank):
        rank.load(saved[rank.rank][0])
        _on(rank, range(4, 8))
        return rank.x, rank.anchor

    saved = run(laconic.celgc(4, send=send, restart=0.5), 2, saving)
    ends = run(laconic.celgc(4, send=send), 2, going_on)
    assert all(torch.equal(x, ends[0][1]) for x, _ in ends)
    assert float((ends[0][1] - saved[0][1]).norm()) < 10.0


@pytest.mark.parametrize("name", METHODS_SAVED)
def test_a_run_that_is_killed_after_every_one_of_sixty_steps_goes_on_with_the_same_bits(name):
    def straight(rank: Rank):
        return _on(rank, range(60))

    def killed(rank: Rank):
        seen = []
        for step in range(60):
            again = Rank(rank.method, rank.port, rank.model, MAKES["sgd"])
            again.load(rank.save())
            seen, rank = seen + _on(again, range(step, step + 1)), again
        return seen

    method = METHODS_SAVED[name]
    expected, got = (run(method, 2, how, make=MAKES["sgd"]) for how in (straight, killed))
    for ours, theirs in zip(got, expected, strict=True):
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert torch.equal(a, b), step
