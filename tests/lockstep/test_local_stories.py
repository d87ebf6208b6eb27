"""What went wrong with rounds of local steps once: each exam begins with what happened."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import laconic
from lockstep.locals import Point, Rank, close, drawn, run, sgd

TOPK = laconic.topk(0.25, whole_below=0)


def _equal(ends: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(a, b) for end in ends for a, b in zip(ends[0], end, strict=True))


@pytest.mark.parametrize("scale", [1e-4, 10.0])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_drift_budget_after_an_empty_or_partial_finish(more, scale):
    # finish() made a round of no steps, or of one where 64 were due; its drift was taken for that of 64.
    model = Point(3, 4, 1)
    for p in model.parameters():
        p.data.fill_(1.0)

    def job(rank: Rank):
        drawn(rank, range(12), scale=1e-4)
        while rank.now.in_round:
            drawn(rank, [1], scale=1e-4)
        seen = [rank.rounds.every]
        drawn(rank, range(more), scale=scale)
        for _ in range(3):
            rank.rounds.finish()
            seen.append(rank.rounds.every)
        return seen

    ends = run(laconic.celgc(8, period="drift"), 2, job, model=model)
    before, after, *again = ends[0]
    assert ends[0] == ends[1]
    assert before > 8
    assert before / 2 <= after <= 2 * before
    assert more or after == before
    assert again == [after, after]


@pytest.mark.parametrize("period", ["every", "adacomm"])
def test_the_state_of_another_period_leaves_the_new_one_in_force(period):
    # The period's state was loaded with the rest: the old number of steps held on for ever, or a law missed its
    # own numbers and raised KeyError in the middle of the run.
    later = laconic.celgc(2) if period == "every" else laconic.celgc(2, period="adacomm")

    def job(rank: Rank):
        drawn(rank, range(16))
        state = rank.save()
        again = Rank(later, rank.port, Point(3, 4, 1), sgd(0.1))
        again.load(state)
        before = again.stats.syncs
        drawn(again, range(6))
        return again.rounds.every, again.stats.syncs - before

    assert run(laconic.celgc(16), 2, job) == [(2, 3)] * 2


@pytest.mark.parametrize(
    "method",
    [
        laconic.diloco(4),
        laconic.celgc(4, send=TOPK),
        laconic.celgc(4, send=TOPK, restart=1.0),
        laconic.spartan(4, density=0.25),
        laconic.diloco(4, fragments=2, delay=1, mix=0.5),
    ],
    ids=["outer momentum", "owed", "held back", "spartan", "streamed"],
)
def test_a_parameter_that_is_frozen_between_rounds_does_not_move(method):
    # Outer momentum, and what ranks still owed of it, moved it for many more syncs.
    def job(rank: Rank):
        drawn(rank, range(4))
        if method.local.restart != 0 or method.local.mix:
            # Ranks begin a round at unlike places: those must first meet.
            rank.rounds.finish()
        frozen = rank.parameters["x.1"]
        frozen.requires_grad_(False)
        start, was, owed = rank.x, frozen.detach().clone(), _owed(rank, "x.1")
        for _ in range(12):
            for p in rank.parameters.values():
                p.grad = None if p is frozen else torch.ones_like(p)
            rank._attempt(None)
            assert torch.equal(frozen, was)
        rank.rounds.finish()
        # What is owed waits for the day it trains again.
        assert torch.equal(_owed(rank, "x.1"), owed)
        return torch.equal(frozen, was), torch.equal(rank.x, start)

    assert run(method, 2, job) == [(True, False)] * 2


def _owed(rank: Rank, name: str) -> torch.Tensor:
    return rank.reducer.state_dict()["memory"].get("owed", {}).get(name, torch.zeros(())).clone()


@pytest.mark.parametrize("method", [laconic.spartan(4, density=0.25), laconic.local_sgd(2)], ids=lambda m: m.name)
def test_weights_that_are_loaded_after_attach_are_kept(method):
    # The anchor was taken at attach: the first sync took the loaded weights for a drift, or dropped them.
    def job(rank: Rank):
        for p in rank.parameters.values():
            p.data.fill_(7.0)
        for _ in range(4):
            rank.follow(1.0)
        rank.rounds.finish()
        return rank.x

    for end in run(method, 2, job):
        assert float((end - 7.0).abs().max()) < 1.0


def _early(rank: Rank) -> None:
    for _ in range(1 if rank.rank == 0 else 16):
        rank.follow(5.0)
    rank.rounds.finish()


def _sampled(rank: Rank) -> None:
    for _ in range(4):
        rank.follow(5.0)


def _skipping(rank: Rank) -> None:
    for step in range(4):
        rank.follow(float("nan") if rank.rank and step else 5.0)


@pytest.mark.parametrize(
    ("method", "loop"),
    [
        (laconic.celgc(16, clip=1.0), _early),
        (laconic.celgc(4, clip=1.0, participants=1), _sampled),
        (laconic.celgc(4, clip=1.0), _skipping),
    ],
    ids=["ended early", "sat out", "skipped"],
)
def test_drift_stays_within_its_bound_for_ranks_that_did_not_walk(method, loop):
    # The bound was made from a rank's own steps: one that stood still is as far from the mean as others have gone.
    def job(rank: Rank):
        loop(rank)
        return rank.stats.drift, rank.stats.drift_bound

    ends = run(method, 2, job)
    assert all(drift <= bound * (1 + 1e-9) < float("inf") for drift, bound in ends)
    assert any(drift > 0.1 for drift, _ in ends)


@pytest.mark.parametrize("participants", [None, 1, 2])
def test_a_sample_with_a_rank_that_ended_has_the_mean_of_those_that_worked(participants):
    # A rank without batches was drawn, stood still, and halved the steps of the round.
    def job(rank: Rank):
        moved = []
        for _ in range(0 if rank.rank == 0 else 12):
            before = rank.now.number
            rank.follow(1.0)
            if rank.now.number > before:
                moved.append(rank.x[0].item())
        rank.rounds.finish()
        return moved, rank.x

    method = laconic.celgc(4, participants=participants)
    ends = run(method, 3, job)
    assert all(torch.equal(x, ends[0][1]) for _, x in ends)
    steps = torch.tensor([0.0, *ends[1][0]]).diff()
    # A round in which nobody worked moves nothing; every other one moves by four whole steps.
    assert all(min(abs(step + 0.4), abs(step)) < 1e-6 for step in steps.tolist())
    assert participants == 1 or all(abs(step + 0.4) < 1e-6 for step in steps.tolist())


def test_a_rank_that_was_poisoned_long_ago_keeps_its_momentum_at_anothers_fault():
    # What it had walked to infinity with was remembered, and the next fault of any rank reset its optimizer too.
    def job(rank: Rank):
        seen = []
        for step in range(6):
            rank.follow(1.0)
            if (rank.rank, step) in ((0, 0), (1, 2)):
                rank.parameters[f"x.{rank.rank}"].data.fill_(float("inf"))
            seen.append(bool(rank.optimizer.state))
        return seen, torch.isfinite(rank.x).all().item()

    ends = run(laconic.diloco(4, fragments=2), 2, job, make=sgd(0.01, momentum=0.9), model=Point(3, 4))
    assert ends[0] == ([True, False, True, True, True, True], True)
    assert ends[1] == ([True, True, True, False, True, True], True)


@pytest.mark.parametrize(
    "method", [laconic.celgc(2, clip=1.0), laconic.parallel_clip(1.0), laconic.diloco(2)], ids=lambda m: m.name
)
def test_parameters_of_unlike_precision(method):
    # A gradient with parts in float32 and in float64 had no norm: the first step raised.
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False).double()])
    for p in model.parameters():
        p.data.zero_()

    def job(rank: Rank):
        for _ in range(4):
            rank.follow(5.0)
        rank.rounds.finish()
        return [p.detach().clone() for p in rank.model.parameters()]

    ends = run(method, 2, job, model=model)
    assert _equal(ends)
    assert [p.dtype for p in ends[0]] == [torch.float32, torch.float64]
    close(ends[0][0].double(), ends[0][1], 1e-6)
    assert ends[0][0].abs().min() > 0.05


@pytest.mark.parametrize(
    "send",
    [None, TOPK, laconic.sdagc(whole_below=0, scope="layer", values="exact")],
    ids=["whole", "topk", "sdagc"],
)
@pytest.mark.parametrize("back_to", [0, 2], ids=["the first step", "the middle of a round"])
def test_a_state_that_is_loaded_while_an_exchange_is_under_way(send, back_to):
    # The next exchange began while the old one was open, and was refused; later the old one's end was written
    # over what had been loaded.
    method = laconic.diloco(4, delay=1, send=send)

    def job(rank: Rank):
        drawn(rank, range(back_to))
        state = rank.save()
        straight = drawn(rank, range(back_to, 12))
        # Elsewhere, and an exchange is under way.
        drawn(rank, range(20, 23))
        assert rank.reducer.open
        rank.load(state)
        again = drawn(rank, range(back_to, 12))
        return straight, again, rank.stats.syncs

    for straight, again, syncs in run(method, 2, job):
        assert _equal([straight, again])
        assert syncs == 3


def test_a_large_seed():
    # Times a large prime it was more than torch's generators take.
    def job(rank: Rank):
        drawn(rank, range(4))
        rank.rounds.finish()
        return rank.x

    ends = run(laconic.celgc(2, participants=1, seed=2**63), 2, job)
    assert torch.equal(ends[0], ends[1])


def test_a_loss_that_was_told_and_not_finite_is_remembered_as_told_after_a_restart():
    # A rank whose only losses were NaN had told them; its restarted self raised that none was told.
    method = laconic.celgc(3, period="adacomm")

    def job(rank: Rank):
        for _ in range(2):
            rank.follow(1.0, loss=float("nan"))
        again = Rank(method, rank.port, Point(3, 4, 1), sgd(0.1))
        again.load(rank.save())
        again.follow(1.0)
        return again.stats.syncs

    assert run(method, 1, job) == [1]
