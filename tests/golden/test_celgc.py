"""CELGC against values worked out by hand (Liu et al. 2022; PAPERS.md 1.4, 1.8)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import laconic
from lockstep.locals import Point, Rank, run, sgd

CENTRES = (4.0, -1.0)


def _quadratics(rank: Rank, steps: int) -> list[float]:
    seen = []
    for _ in range(steps):
        rank.follow(rank.x - CENTRES[rank.rank])
        seen.append(rank.x.item())
    return seen


@pytest.mark.parametrize(
    ("rate", "gamma", "update", "clips"),
    [(0.1, 1.0, (-0.3, -0.4), 0), (0.3, 1.0, (-0.6, -0.8), 1), (30.0, 7.5, (-4.5, -6.0), 1)],
)
def test_one_step_of_a_vector(rate, gamma, update, clips):
    def job(rank):
        rank.follow(torch.tensor([3.0, 4.0], dtype=torch.float64))
        return rank.x, rank.now.clipped

    # In two parameters: the norm is the whole gradient's.
    method = laconic.celgc(every=8, clip=gamma / rate)
    for x, clipped in run(method, 2, job, model=Point(1, 1), make=sgd(rate)):
        torch.testing.assert_close(x, torch.tensor(update, dtype=torch.float64), rtol=0, atol=1e-15)
        assert clipped == clips


def test_two_quadratics():
    def job(rank):
        return _quadratics(rank, 8), rank.now.clipped

    first, second = run(laconic.celgc(every=2, clip=2.0), 2, job, model=Point(1), make=sgd(0.5))
    assert first[0][1::2] == second[0][1::2] == [0.625, 1.015625, 1.2578125, 1.37890625]


def test_who_clips_in_the_first_two_rounds():
    def job(rank):
        _quadratics(rank, 4)
        return rank.now.clipped, rank.stats.clipped_share

    assert run(laconic.celgc(every=2, clip=2.0), 2, job, model=Point(1), make=sgd(0.5)) == [(4, 1.0), (0, 0.0)]


def test_naive_parallel_clipping_of_two_quadratics():
    def job(rank):
        return _quadratics(rank, 6), rank.now.clipped

    golden = [0.75, 1.125, 1.3125, 1.40625, 1.453125, 1.4765625]
    for seen, clipped in run(laconic.parallel_clip(2.0), 2, job, model=Point(1), make=sgd(0.5)):
        assert (seen, clipped) == (golden, 0)


def test_naive_parallel_clipping_clips_the_mean():
    def job(rank):
        taken = rank.follow(torch.tensor([(12.0, -4.0)[rank.rank], 0.0], dtype=torch.float64))
        return rank.x.tolist(), taken, rank.now.clipped

    # Norms 12 and 4, the mean's is 4.
    golden = ([-1.0, 0.0], True, 1)
    assert run(laconic.parallel_clip(2.0), 2, job, model=Point(2), make=sgd(0.5)) == [golden, golden]


@pytest.mark.parametrize(
    ("norm_by", "lengths"),
    # The mean gradient at the round's first step has norm 4; steps have norms 12, 1 and 4, 20. Clipped at 2.
    [
        ("local", [(2.0, 1.0), (2.0, 2.0)]),
        ("global_average", [(6.0, 0.5), (2.0, 10.0)]),
        ("max", [(2.0, 0.5), (2.0, 2.0)]),
    ],
)
def test_whose_norm_it_is(norm_by, lengths):
    grads = [(12.0, 1.0), (-4.0, 20.0)]

    def job(rank):
        seen = [rank.x.item()]
        for grad in grads[rank.rank]:
            rank.follow(grad)
            seen.append(rank.x.item())
        return [abs(b - a) for a, b in pairwise(seen)]

    method = laconic.celgc(every=3, clip=2.0, norm_by=norm_by)
    for ours, golden in zip(run(method, 2, job, model=Point(1), make=sgd(1.0)), lengths, strict=True):
        assert ours == pytest.approx(golden, abs=1e-12)


def test_the_mean_gradient_is_held_for_one_round_only():
    def job(rank):
        seen = [rank.x.item()]
        for grad in (8.0, 8.0, 1.0, 8.0):
            rank.follow(grad)
            seen.append(rank.x.item())
        return [a - b for a, b in pairwise(seen)]

    method = laconic.celgc(every=2, clip=2.0, norm_by="global_average")
    # In the second round the mean's norm is 1, under the threshold: nothing is clipped.
    for steps in run(method, 2, job, model=Point(1), make=sgd(1.0)):
        assert steps == pytest.approx([2.0, 2.0, 1.0, 8.0], abs=1e-12)


def test_the_threshold_follows_the_learning_rate():
    def job(rank):
        lengths = []
        for rate in (0.5, 0.05):
            rank.optimizer.param_groups[0]["lr"] = rate
            before = rank.x
            rank.follow(100.0)
            lengths.append((before - rank.x).item())
        return lengths

    for lengths in run(laconic.celgc(every=8, clip=2.0), 2, job, model=Point(1), make=sgd(0.5)):
        assert lengths == pytest.approx([1.0, 0.1], abs=1e-12)


def test_a_threshold_meant_for_the_mean_is_a_ranks_times_the_root_of_their_number():
    def job(rank):
        rank.follow(100.0)
        return rank.x.item()

    method = laconic.celgc(every=8, clip=2.0, convention="mean")
    assert run(method, 4, job, model=Point(1), make=sgd(1.0)) == pytest.approx([-4.0] * 4)
