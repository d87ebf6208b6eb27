"""Models that should be equal on all ranks are compared while training: a difference is named, or healed."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.errors import GroupError
from models import Mlp, inner, loss, wrap

METHODS = {
    "dense": laconic.dense(),
    "topk": laconic.topk(0.05),
    "sdagc": laconic.sdagc(6.0),
    "celgc": laconic.celgc(2),
    "spartan": laconic.spartan(2, density=0.1),
}
LOCAL = [name for name, method in METHODS.items() if method.local is not None]
EVERY_STEP = [name for name in METHODS if name not in LOCAL]


def _attached(group, method, kind, **settings):
    torch.manual_seed(1)
    model = Mlp() if kind == "plain" else wrap(Mlp(), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    own = {} if kind == "ddp" else {"group": group}
    return model, optimizer, laconic.attach(model, optimizer, method, **own, **settings)


def _step(model, optimizer, group, step):
    loss(model, group.rank(), step).backward()
    optimizer.step()
    optimizer.zero_grad()


def _trained(group, name, kind, spoiled, settings, steps=6):
    """Train; after step 3 write into these ranks' models by hand. Return weights, or what was raised and when."""
    model, optimizer, link = _attached(group, METHODS[name], kind, **settings)
    for step in range(steps):
        try:
            _step(model, optimizer, group, step)
        except GroupError as error:
            return step + 1, str(error), link.stats.look_bytes
        if step == 2 and group.rank() in spoiled:
            with torch.no_grad():
                list(inner(model).parameters())[1][0] += 1.0
    link.finish()
    link.detach()
    return [p.detach().clone() for p in inner(model).parameters()], link.stats.look_bytes, link.stats.wire_bytes


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("name", METHODS)
def test_a_comparison_changes_nothing_but_bytes_that_are_counted_apart(pool, name, kind):
    looked = pool.run(2, _trained, name, kind, (), {"check_every": 2})
    straight = pool.run(2, _trained, name, kind, (), {})
    for (ours, look, wire), (theirs, none, plain) in zip(looked, straight, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert (look > 0, none) == (True, 0)
        assert wire == plain


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("name", EVERY_STEP)
def test_a_model_that_was_written_to_is_named_on_every_rank_at_the_next_comparison(pool, name, kind):
    for step, said, look in pool.run(3, _trained, name, kind, (1,), {"check_every": 2}):
        assert step == 4
        assert look > 0
        second = [name for name, _ in Mlp().named_parameters()][1]
        assert said.startswith("models of ranks differ after 4 steps or syncs: ")
        assert second in said
        assert "alike are ranks [0, 2], ranks [1]" in said
        assert "Load the last checkpoint on every rank" in said


@pytest.mark.parametrize("name", EVERY_STEP)
def test_the_majority_heals_the_others(pool, name):
    settings = {"check_every": 2, "on_difference": "heal"}
    # Between the third step, after which the model was written to, and the next comparison one step goes by.
    healed = [weights for weights, _, _ in pool.run(3, _trained, name, "plain", (2,), settings)]
    straight = [weights for weights, _, _ in pool.run(3, _trained, name, "plain", (), {})]
    for weights in healed:
        assert all(torch.equal(a, b) for a, b in zip(weights, healed[0], strict=True))
        # Far from what was written: what is left is what the spoiled rank's gradient did to the mean.
        assert all(float((a - b).abs().max()) < 0.5 for a, b in zip(weights, straight[0], strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_a_majority_nobody_is_healed(pool, ranks):
    settings = {"check_every": 2, "on_difference": "heal"}
    for step, said, _ in pool.run(ranks, _trained, "topk", "plain", range(1, ranks, 2), settings):
        assert step == 4
        assert "No version is held by more than half of the ranks" in said


def _anchor_lost(group):
    model, optimizer, link = _attached(group, METHODS["celgc"], "plain", check_every=1)
    for step in range(2):
        _step(model, optimizer, group, step)
    if group.rank() == 1:
        # As if a bit had flipped in what ranks have agreed on.
        link.rounds._sync.fragments[0].anchor[3] += 1.0
    try:
        for step in range(2, 4):
            _step(model, optimizer, group, step)
    except GroupError as error:
        return str(error)
    return ""


def test_in_rounds_of_local_steps_what_ranks_agree_on_is_compared(pool):
    assert all("models of ranks differ after 2" in said for said in pool.run(2, _anchor_lost))


def _refused(group, settings):
    try:
        _attached(group, settings.pop("method", METHODS["celgc"]), "plain", **settings)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"check_every": -1}, "check_every must be"),
        (
            {"check_every": 1, "method": laconic.parallel_clip(1.0)},
            "check_every compares what ranks agree on when a",
        ),
        ({"check_every": 1, "on_difference": "shrug"}, "on_difference must be one of raise, heal; got 'shrug'"),
        (
            {"check_every": 1, "on_difference": "heal"},
            "on_difference='heal' wants models that are equal after every",
        ),
    ],
)
def test_wrong_settings_are_refused_before_any_rank_talks(pool, settings, says):
    assert all(said.startswith(says) for said in pool.run(1, _refused, settings))
