"""The law of progress in a loop: the mean loss moves c alike on all ranks, and a missing loss is told."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from models import build, digest, loss, train, weights
from pool import run_alone

PROGRESS = laconic.sdagc(6.0, law="progress", scope="layer", values="exact")
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])


def _observed(group, kind, as_tensor):
    model, optimizer, link = build(group, kind, PROGRESS)
    rank, settings, bits = dist.get_rank(group), [], []
    for step in range(8):
        made = loss(model, rank, step)
        told = made * 0.5**step
        link.observe(told if as_tensor else told.item())
        made.backward()
        optimizer.step()
        optimizer.zero_grad()
        settings.append(link.state_dict()["setting"]["c"])
        bits.append(digest(weights(model)))
    return settings, bits


@KINDS
def test_c_follows_the_loss_alike_on_all_ranks(pool, kind):
    results = pool.run(3, _observed, kind, False)
    assert all(result == results[0] for result in results)
    settings = results[0][0]
    assert settings[0] == settings[1] == PROGRESS.tuner.c_min
    assert len(set(settings)) > 2


def test_the_loss_may_be_told_as_the_tensor_that_backward_starts_from(pool):
    # Processes of their own: torch warns of tensors that become numbers once a process, and warnings are errors.
    outcomes = run_alone(2, _observed, "plain", True)
    assert [outcome.message for outcome in outcomes] == ["", ""]
    assert [outcome.value for outcome in outcomes] == pool.run(2, _observed, "plain", False)


def _never_told(group, kind):
    model, optimizer, _ = build(group, kind, PROGRESS)
    with pytest.raises(laconic.LaconicError) as caught:
        train(model, optimizer, group, [0])
    return str(caught.value)


@KINDS
def test_a_loss_that_was_never_told_is_asked_for_on_every_rank(pool, kind):
    for told in pool.run(2, _never_told, kind):
        assert "link.observe(loss) before loss.backward()" in told


def _told_once(group, kind):
    model, optimizer, link = build(group, kind, PROGRESS)
    link.observe(1.0)
    train(model, optimizer, group, [0])
    with pytest.raises(laconic.LaconicError) as caught:
        train(model, optimizer, group, [1])
    return str(caught.value)


@KINDS
def test_the_loss_of_one_step_is_not_that_of_the_next(pool, kind):
    # Otherwise a loop that stops observing steers by a loss of long ago, and nobody is told.
    for told in pool.run(2, _told_once, kind):
        assert "link.observe(loss)" in told


def _told_on_one_rank(group, kind):
    model, optimizer, link = build(group, kind, PROGRESS)
    if dist.get_rank(group) == 0:
        link.observe(1.0)
    train(model, optimizer, group, [0])


@KINDS
def test_a_loss_told_on_one_rank_only_is_an_error_on_all(kind):
    for outcome in run_alone(2, _told_on_one_rank, kind, timeout_seconds=5):
        assert outcome.exitcode == 0
        assert outcome.error in ("LaconicError", "GroupError", "ExchangeError")


def _not_needed(group, kind, told):
    model, optimizer, link = build(group, kind, laconic.sdagc(3.0, scope="layer", values="exact"))
    seen = []
    for step in range(3):
        if told:
            link.observe(float(step + dist.get_rank(group)))
        seen += train(model, optimizer, group, [step])
    return seen


def test_a_law_that_does_not_follow_the_loss_is_not_moved_by_it(pool):
    assert pool.run(2, _not_needed, "ddp", True) == pool.run(2, _not_needed, "ddp", False)


def _nan(group):
    model, optimizer, link = build(group, "plain", laconic.sdagc(3.0, scope="layer", values="exact"))
    link.observe(torch.tensor(float("nan")))
    if dist.get_rank(group) == 0:
        with pytest.warns(UserWarning, match="the loss was not finite at step 0"):
            train(model, optimizer, group, [0])
    else:
        train(model, optimizer, group, [0])


def test_a_loss_that_is_not_a_number_is_said_on_the_first_rank(pool):
    pool.run(2, _nan)
