"""States of some ranks go on on another number of them: what the model is still to get is not changed by that."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import same_bits
from laconic.exchanges import TwoLevel
from lockstep.locals import LOCAL, Point, Rank, draw, run, small
from lockstep.world import World, gradients

TOPK = laconic.topk(0.3, whole_below=0)


def _run(world: World, ranks: int, steps: range) -> None:
    for step in steps:
        got = world.step(gradients(ranks, step))
        assert all(same_bits(each, got[0]) for each in got)


def _mean(world: World, kind: str) -> torch.Tensor:
    return torch.stack(world.kept(kind)).mean(0)


@pytest.mark.parametrize("method", recipes(), ids=label)
def test_what_the_model_is_still_to_get_outlives_every_change_of_ranks(method):
    """Four, two, three, four: the mean over ranks of what is owed and of velocity is the same to rounding."""
    world, ranks = World(method, 4), 4
    for turn, then in enumerate((2, 3, 4)):
        _run(world, ranks, range(3 * turn, 3 * turn + 3))
        after = World(method, then)
        after.load(laconic.resharded(world.save(), ranks=then))
        for kind in world.save()[0]["memory"]:
            if kind != "sent_at":
                torch.testing.assert_close(_mean(after, kind), _mean(world, kind), rtol=1e-13, atol=1e-13)
        world, ranks = after, then
    _run(world, ranks, range(9, 12))


@pytest.mark.parametrize(
    "method",
    [TOPK, laconic.sdagc(2.0, whole_below=0, scope="layer", values="exact"), laconic.powersgd(1)],
    ids=label,
)
def test_as_many_ranks_as_before_have_the_same_states(method):
    world = World(method, 3)
    _run(world, 3, range(3))
    states = world.save()
    assert laconic.resharded(states, ranks=3) == [dict(state) for state in states]


def test_fewer_ranks_merge_neighbours_and_more_share_them_out():
    world = World(TOPK, 4)
    _run(world, 4, range(3))
    four = world.owed()
    fewer, more = World(TOPK, 2), World(TOPK, 8)
    fewer.load(laconic.resharded(world.save(), ranks=2))
    more.load(laconic.resharded(world.save(), ranks=8))
    for i, owed in enumerate(fewer.owed()):
        torch.testing.assert_close(owed, (four[2 * i] + four[2 * i + 1]) / 2, rtol=1e-15, atol=0)
    assert all(same_bits(owed, four[i // 2]) for i, owed in enumerate(more.owed()))


def test_given_states_stay_as_they_are():
    world = World(laconic.sdagc(2.0, whole_below=0, scope="layer", values="exact"), 4)
    _run(world, 4, range(3))
    states = world.save()
    before = copy.deepcopy(states)
    for state in laconic.resharded(states, ranks=1):
        for part in state["memory"]["owed"].values():
            part.zero_()
    for state, was in zip(states, before, strict=True):
        for name, part in was["memory"]["owed"].items():
            assert same_bits(state["memory"]["owed"][name], part)


def test_what_waits_longest_says_how_long_things_wait():
    world = World(TOPK, 2, track_age=True)
    _run(world, 2, range(4))
    alone = World(TOPK, 1, track_age=True)
    alone.load(laconic.resharded(world.save(), ranks=1))
    assert torch.equal(alone.kept("sent_at")[0], torch.stack(world.kept("sent_at")).amin(0))


def test_what_was_seen_is_told_as_if_as_many_had_been_there():
    method = replace(TOPK, exchange=TwoLevel(inner=TOPK.exchange, node_size=2))
    world = World(method, 8, node_size=2)
    _run(world, 8, range(2))
    seen = laconic.resharded(world.save(), ranks=4)[0]["seen"]
    truth = World(method, 4, node_size=2)
    _run(truth, 4, range(2))
    there = truth.save()[0]["seen"]
    for what in ("entries", "sent", "choosable", "ranks", "world_size"):
        assert seen[what] == there[what], what


def test_the_ranks_of_a_node_go_on_with_one_memory():
    method = replace(TOPK, exchange=TwoLevel(inner=TOPK.exchange, node_size=2))
    world = World(method, 4, node_size=2)
    _run(world, 4, range(3))
    two = laconic.resharded(world.save(), ranks=2)
    after = World(method, 2, node_size=2)
    after.load(two)
    assert same_bits(*after.owed())
    torch.testing.assert_close(after.owed()[0], _mean(world, "owed"), rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match=r"nodes have 2 ranks: 4 states cannot go on on 3 ranks"):
        laconic.resharded(world.save(), ranks=3)


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_go_on_on_fewer_ranks_after_a_finished_round(name):
    def saving(rank: Rank):
        for step in range(7):
            rank.follow(draw(rank.rank, step))
        rank.rounds.finish()
        return rank.save()

    def going_on(rank: Rank):
        state = after[rank.rank]
        rank.load({**saved[0], "reducer": state, "rounds": state["rounds"]})
        for step in range(7, 13):
            rank.follow(draw(rank.rank, step))
        rank.rounds.finish()
        return rank.x

    method = small(name)
    saved = run(method, 4, saving)
    after = laconic.resharded([state["reducer"] | {"rounds": state["rounds"]} for state in saved], ranks=2)
    ends = run(method, 2, going_on)
    assert same_bits(*ends)
    assert bool(torch.isfinite(ends[0]).all())


def _saved_after(steps: int, numel: int = 8):
    def saving(rank: Rank):
        for step in range(steps):
            rank.follow(draw(rank.rank, step, numel))
        saved = rank.save()
        rank.rounds.finish()
        return saved

    return saving


def _links(saved: list[dict]) -> list[dict]:
    return [state["reducer"] | {"rounds": state["rounds"]} for state in saved]


UNDER_WAY = {
    "within": (laconic.celgc(4), 1),
    "fragments": (laconic.diloco(6, fragments=3), 6),
    "mixed": (laconic.diloco(4, mix=0.5), 4),
    "mixed late": (laconic.diloco(4, delay=1, mix=0.5), 4),
}


@pytest.mark.parametrize("name", UNDER_WAY)
def test_ranks_within_a_round_are_told_what_is_missing(name):
    method, steps = UNDER_WAY[name]
    states = _links(run(method, 2, _saved_after(steps)))
    with pytest.raises(ValueError, match=r"within a round .* 2 cannot go on as 3\. Give models= too, or call"):
        laconic.resharded(states, ranks=3)


def test_an_exchange_under_way_must_end_before():
    saved = run(laconic.diloco(4, delay=1), 2, _saved_after(3))
    models = [state["model"] for state in saved]
    with pytest.raises(ValueError, match=r"an exchange was under way .* 2 cannot go on as 1\. Call link\.finish"):
        laconic.resharded(_links(saved), ranks=1, models=models)


WITHIN = {
    "celgc": (laconic.celgc(4), 2),
    "clipped and corrected": (laconic.episode(4, clip=1.0), 3),
    "outer momentum": (laconic.diloco(4), 3),
    "fragments": (laconic.diloco(6, fragments=3), 5),
    "mixed": (laconic.diloco(4, mix=0.5), 6),
    "ahead": (laconic.celgc(4, send=TOPK, restart=0.5), 6),
    "ahead in every step": (laconic.celgc(1, send=TOPK, restart=None), 5),
    "not ahead": (laconic.celgc(4, send=TOPK, restart=0.0), 6),
    "begun with averages": (laconic.post_local(4, start=2), 5),
}


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", WITHIN)
def test_a_round_that_ends_early_loses_no_step(name, ranks):
    """Model and debt: what all would have, if the round's steps were averaged and all debts paid."""

    def going_on(rank: Rank):
        state = after[rank.rank]
        rank.load({**saved[0], "reducer": state, "rounds": state["rounds"]})
        began, owed = rank.x, rank.owed if rank.method.memory != "none" else torch.zeros(8)
        for step in range(steps, steps + 7):
            rank.follow(draw(rank.rank, step))
        rank.rounds.finish()
        return began, owed, rank.x

    method, steps = WITHIN[name]
    saved = run(method, 3, _saved_after(steps))
    states = _links(saved)
    after = laconic.resharded(states, ranks=ranks, models=[state["model"] for state in saved])
    began, owed, ends = zip(*run(method, ranks, going_on), strict=True)
    assert all(same_bits(each, began[0]) for each in began), "all begin from one model"
    assert all(same_bits(each, ends[0]) for each in ends)

    def flat(parts: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([parts[f"x.{i}"].flatten().double() for i in range(3)])

    debts = [flat(state["memory"]["owed"]) if "owed" in state["memory"] else torch.zeros(8) for state in states]
    sync = [state["rounds"]["sync"] for state in states]
    # What a rank holds back it has taken from its own model already.
    held = [s["share"] * debt if s["marks"][0][0] else 0 * debt for s, debt in zip(sync, debts, strict=True)]
    models = [flat(state["model"]) + hold for state, hold in zip(saved, held, strict=True)]
    torch.testing.assert_close(began[0], torch.stack(models).mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack(owed).mean(0), torch.stack(debts).mean(0), rtol=1e-12, atol=1e-12)


def test_ranks_that_sat_out_a_round_do_not_hold_back_those_that_walked():
    method = laconic.celgc(4, send=laconic.topk(0.3, whole_below=0, memory="update"), restart=None, participants=3)
    saved = run(method, 5, _saved_after(6, 80), model=Point(50, 30, dtype=torch.float32))
    states = _links(saved)
    sent = [state["rounds"]["sync"]["sends"] for state in states]
    assert sum(sent) == 3
    after = laconic.resharded(states, ranks=2, models=[state["model"] for state in saved])

    def anchor(state: dict, name: str) -> torch.Tensor:
        return state["rounds"]["sync"]["fragments"][0]["anchor"][name].double()

    for name in ("x.0", "x.1"):
        share = states[0]["rounds"]["sync"]["share"]
        walks = [
            anchor(state, name) - share * state["memory"]["owed"][name].double() - each["model"][name].double()
            for state, each, sends in zip(states, saved, sent, strict=True)
            if sends
        ]
        moved = anchor(states[0], name) - anchor(after[0], name)
        torch.testing.assert_close(moved, torch.stack(walks).mean(0), rtol=1e-4, atol=1e-6)
        assert moved.norm() > 0


def test_a_round_in_which_a_rank_lost_its_model_is_dropped():
    saved = run(laconic.celgc(4), 3, _saved_after(2))
    saved[1]["model"]["x.1"][0] = torch.nan
    states = _links(saved)
    after = laconic.resharded(states, ranks=2, models=[state["model"] for state in saved])
    for name, anchor in states[0]["rounds"]["sync"]["fragments"][0]["anchor"].items():
        assert same_bits(after[0]["rounds"]["sync"]["fragments"][0]["anchor"][name], anchor)


def test_models_that_are_not_those_of_the_states_are_refused():
    saved = run(laconic.celgc(4), 2, _saved_after(1))
    states, models = _links(saved), [state["model"] for state in saved]
    with pytest.raises(ValueError, match=r"models must be those of all ranks, got 1 with 2 states"):
        laconic.resharded(states, ranks=1, models=models[:1])
    with pytest.raises(ValueError, match=r"models must be those of the states, .* x\.0 is missing"):
        laconic.resharded(states, ranks=1, models=[{}, {}])
    with pytest.raises(ValueError, match=r"models must be those of the states: x\.0 has 1 entries, not 3"):
        laconic.resharded(states, ranks=1, models=[model | {"x.0": torch.zeros(1)} for model in models])


def test_states_of_unlike_moments_or_of_no_run_are_refused():
    world = World(TOPK, 2)
    _run(world, 2, range(2))
    states = world.save()
    with pytest.raises(ValueError, match=r"not of one moment of one run: step is \[2, 1\]"):
        laconic.resharded([states[0], {**states[1], "step": 1}], ranks=1)
    with pytest.raises(ValueError, match=r"version 3, this laconic reads"):
        laconic.resharded([{**state, "version": 3} for state in states], ranks=1)
    with pytest.raises(ValueError, match=r"the states lack memory, seen: they were not saved"):
        laconic.resharded([{k: v for k, v in s.items() if k not in ("memory", "seen")} for s in states], ranks=1)
    with pytest.raises(ValueError, match=r"ranks must be .*1 or more, got 0"):
        laconic.resharded(states, ranks=0)
    for wrong in ([], [None]):
        with pytest.raises(TypeError, match=r"wants the states of all ranks"):
            laconic.resharded(wrong, ranks=1)
