"""What went wrong once while gradients were averaged in every step, and when ranks looked at the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import GroupError
from lockstep.locals import Rank, close, draw, run, sgd


def _norm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()


def _batch(rank: Rank, step: int) -> bool:
    """A step of a model with BatchNorm, on data of this rank's own."""
    return rank.step(lambda module: module(draw(rank.rank, step, 12).view(4, 3)).square().mean(), tell=False)


def _bits(rank: Rank) -> list[torch.Tensor]:
    return [rank.x, *(b.clone() for b in rank.model.buffers())]


def _equal(ends: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(a, b) for end in ends for a, b in zip(ends[0], end, strict=True))


@pytest.mark.parametrize("method", [laconic.parallel_clip(), laconic.post_local(2, start=3)], ids=lambda m: m.name)
def test_ranks_with_unlike_learning_rates_are_all_told_where_gradients_are_averaged(method):
    # Averaged gradients with unlike rates led to unlike models, and the first sync made one of them everybody's.
    def job(rank: Rank):
        rank.optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank.rank)
        with pytest.raises(GroupError, match=r"unlike learning rates.*Use the same on all ranks"):
            rank.follow(1.0)
        return True

    assert run(method, 3, job) == [True] * 3


@pytest.mark.parametrize("norm", [None, 1.0], ids=["free", "clipped"])
def test_zero_on_one_rank_and_none_on_another_decays_the_weights_of_both(norm):
    # The mean is zero. It was given to the rank that had a gradient, whose optimizer then decayed weights, and
    # not to the other: their models went apart for good.
    def job(rank: Rank):
        for p in rank.parameters.values():
            p.data.fill_(1.0)
        for _ in range(5):
            for name, p in rank.parameters.items():
                p.grad = torch.ones_like(p)
                if name == "x.0":
                    p.grad = torch.zeros_like(p) if rank.rank == 0 else None
                if name == "x.1":
                    p.grad = None
            rank._attempt(None)
        rank.rounds.finish()
        return rank.x

    ends = run(laconic.parallel_clip(norm), 2, job, make=sgd(0.1, weight_decay=0.1))
    assert torch.equal(ends[0], ends[1])
    close(ends[0][:3], torch.full((3,), 0.99**5, dtype=torch.float64))
    # Nobody had a gradient for these.
    assert torch.equal(ends[0][3:7], torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("counts", [(5, 5), (2, 5), (0, 3)], ids=str)
@pytest.mark.parametrize("method", [laconic.parallel_clip(), laconic.post_local(2, start=9)], ids=lambda m: m.name)
def test_buffers_are_equal_after_a_finish_in_the_start_phase(method, counts):
    # No round had ended, and only the end of a round saw to running statistics.
    def job(rank: Rank):
        for step in range(counts[rank.rank]):
            _batch(rank, step)
        rank.rounds.finish()
        return _bits(rank)

    ends = [[x for x in end if x.is_floating_point()] for end in run(method, 2, job, model=_norm_net())]
    assert _equal(ends)
    assert not torch.equal(ends[0][1], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("counts", [(1, 5), (2, 3), (3, 9), (0, 4)], ids=str)
@pytest.mark.parametrize("buffers", ["keep", "average", "recompute"])
def test_a_rank_that_ends_in_the_start_phase_while_others_go_past_it(counts, buffers):
    # It came out of the averaging to see to buffers, while the others went on to a sync: nobody got an answer.
    def job(rank: Rank):
        for step in range(counts[rank.rank]):
            _batch(rank, step)
        rank.rounds.finish()
        return rank.x, rank.model[1].running_mean.clone()

    method = laconic.post_local(2, start=3)
    method = replace(method, local=replace(method.local, buffers=buffers))
    ends = run(method, 2, job, model=_norm_net())
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1]) == (buffers != "keep")


def test_a_look_when_ranks_are_a_given_up_step_apart():
    # One was at the start of its round and took the anchor without a word; the other waited for its model.
    def job(rank: Rank):
        for step in range(5 - rank.rank):
            rank.follow(draw(rank.rank, step))
        mine = rank.x
        with rank.rounds.averaged():
            mean = rank.x
        assert torch.equal(rank.x, mine)
        return mine, mean

    (a, mean), (b, other) = run(laconic.celgc(4), 2, job)
    assert torch.equal(mean, other)
    close(mean, (a + b) / 2)


def test_a_look_when_others_are_at_a_sync_is_refused_on_all():
    # A table of two numbers met one of eleven: gloo ended the process.
    def job(rank: Rank):
        with pytest.raises(GroupError, match=r"ranks \[1\] are in link\.averaged\(\) and the others at a sync"):  # noqa: PT012
            for _ in range(4 - rank.rank):
                rank.follow(1.0)
            with rank.rounds.averaged():
                pass
        return True

    assert run(laconic.celgc(4), 2, job) == [True, True]
