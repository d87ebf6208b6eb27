"""Save, leave, load in fresh objects, go on: the same bits as a run that was never interrupted."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from covering import in_turn
from models import attach, build, digest, memory_bits, owed, train, weights
from pool import run_alone

METHODS = [
    laconic.dense(),
    laconic.topk(0.05, warmup_steps=5),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05, warmup_steps=5),
    laconic.sdagc(3.0, law="target", density=0.05, clip=0.5, fallback=True, scope="layer", values="exact"),
    laconic.sdagc(
        10.0, warmup_steps=5, revision="damp", clip=0.5, clip_scope="layer", scope="layer", values="exact"
    ),
    laconic.sdagc(10.0, warmup_steps=5),
    laconic.dgc(0.05, warmup_steps=5, clip=0.5),
]
BEFORE, AFTER = 3, 4


def _label(method):
    return method.name


class Run:
    """A training run with everything that a checkpoint must hold."""

    def __init__(self, group, kind, method, *, measure_every=0) -> None:
        self.group = group
        self.model, self.optimizer, _ = build(group, kind, None)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.8)
        self.link = attach(self.model, self.optimizer, method, group, measure_every=measure_every)

    def train(self, steps):
        return train(self.model, self.optimizer, self.group, steps, after=self.schedule.step)

    def _path(self, folder):
        return f"{folder}/rank{dist.get_rank(self.group)}.pt"

    def _parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "link": self.link}

    def save(self, folder):
        torch.save({name: part.state_dict() for name, part in self._parts().items()}, self._path(folder))

    def load(self, folder):
        state = torch.load(self._path(folder), weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def result(self):
        stats = self.link.stats
        memory = memory_bits(self.link)
        numbers = (stats.steps, stats.skipped_steps, stats.wire_bytes, stats.dense_bytes, stats.collectives)
        state = self.link.state_dict()
        agreed = repr((state["ledger"]["rooms"], state["tuner"], state["setting"]))
        return digest(weights(self.model)), memory, agreed, numbers, stats.density


def _uninterrupted(group, kind, method, folder=None):
    """Save on the way, if there is a folder for it, and go on."""
    run = Run(group, kind, method)
    run.train(range(BEFORE))
    if folder is not None:
        run.save(folder)
    seen = run.train(range(BEFORE, BEFORE + AFTER))
    return seen, run.result()


def _first_half(group, kind, method, folder):
    run = Run(group, kind, method)
    run.train(range(BEFORE))
    run.save(folder)


def _second_half(group, kind, method, folder):
    torch.manual_seed(99)
    run = Run(group, kind, method)
    run.load(folder)
    seen = run.train(range(BEFORE, BEFORE + AFTER))
    return seen, run.result()


@pytest.mark.parametrize(("method", "ranks"), in_turn([*METHODS, METHODS[4]], [3, 2, 3, 1], ids=_label))
def test_a_plain_module_goes_on_with_the_same_bits(pool, tmp_path, method, ranks):
    whole = pool.run(ranks, _uninterrupted, "plain", method, str(tmp_path))
    assert pool.run(ranks, _second_half, "plain", method, str(tmp_path)) == whole


@pytest.mark.parametrize(
    ("method", "ranks"),
    # An all-reduce of three or more adds in an order that depends on the bucket's size: dense and randomk on two.
    [(m, 2 if m.exchange.name == "reduce_mean" else 3) for m in METHODS],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_ddp_module_goes_on_with_the_same_bits(pool, tmp_path, method, ranks):
    whole = pool.run(ranks, _uninterrupted, "ddp", method, str(tmp_path))
    resumed = pool.run(ranks, _second_half, "ddp", method, str(tmp_path))
    # The weights, all that is remembered and the rooms. Bytes may differ: in the first step after a restart the
    # number of buckets does.
    assert [(seen, *rest[:3]) for seen, rest in resumed] == [(seen, *rest[:3]) for seen, rest in whole]


def _killed_half_way(group, kind, method, folder):
    _first_half(group, kind, method, folder)
    raise SystemExit("killed")


@pytest.mark.parametrize(("kind", "method"), [("ddp", METHODS[4]), ("plain", METHODS[1])], ids=["ddp", "plain"])
def test_processes_that_never_met_the_first_run_go_on_with_the_same_bits(pool, tmp_path, kind, method):
    gone = run_alone(2, _killed_half_way, kind, method, str(tmp_path))
    assert [o.error for o in gone] == ["SystemExit"] * 2
    resumed = [o.value for o in run_alone(2, _second_half, kind, method, str(tmp_path))]
    assert [seen for seen, _ in resumed] == [seen for seen, _ in pool.run(2, _uninterrupted, kind, method)]


def _measured(group, kind, resumed):
    model, optimizer, _ = build(group, kind, None)
    link = attach(model, optimizer, laconic.topk(0.05), group, measure_every=1)
    train(model, optimizer, group, range(3))
    if resumed:
        state = [model.state_dict(), optimizer.state_dict(), link.state_dict()]
        link.detach()
        model, optimizer, _ = build(group, kind, None)
        link = attach(model, optimizer, laconic.topk(0.05), group, measure_every=1)
        for part, saved in zip((model, optimizer, link), state, strict=True):
            part.load_state_dict(saved)
    train(model, optimizer, group, range(3, 6))
    return [dataclasses.astuple(m) for m in link.stats.history[-3:]]


def test_measurements_go_on_where_they_stopped(pool):
    whole, again = (pool.run(2, _measured, "plain", resumed) for resumed in (False, True))
    for a, b in zip(whole, again, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-6)


def _other_settings(group, folder):
    run = Run(group, "plain", laconic.topk(0.5))
    run.load(folder)
    run.train(range(BEFORE, BEFORE + 2))
    return run.link.stats.density, run.result()


def test_a_state_may_be_taken_up_with_another_density(pool, tmp_path):
    pool.run(2, _first_half, "plain", laconic.topk(0.05), str(tmp_path))
    results = pool.run(2, _other_settings, str(tmp_path))
    assert results[0][0] > 0.5
    assert results[0][1][0] == results[1][1][0]


def _other_unit(group, folder):
    run = Run(group, "plain", laconic.topk_sgd(0.05))
    before = digest(owed(run.link).values())
    with pytest.raises(ValueError, match=r"'gradient' units.*'update'.*memory='gradient'"):
        run.load(folder)
    return digest(owed(run.link).values()) == before and run.link.stats.steps == 0


def test_a_state_in_another_unit_is_refused_whole(pool, tmp_path):
    pool.run(2, _first_half, "plain", laconic.topk(0.05), str(tmp_path))
    assert pool.run(2, _other_unit, str(tmp_path)) == [True, True]


def _unlike_steps(group, kind, method, load, measure_every=0):
    """Train, then go on in a fresh run where rank r loads the state of step ``load[r]``, or none."""
    run = Run(group, kind, method, measure_every=measure_every)
    states = [run.link.state_dict()]
    for step in range(3):
        run.train([step])
        states.append(run.link.state_dict())
    run.link.detach()
    run = Run(group, kind, method, measure_every=measure_every)
    mine = load[dist.get_rank(group)]
    if mine is not None:
        run.link.load_state_dict(states[mine])
    run.train([3])


# What each rank loads, and where it then is: unlike checkpoints, or one rank alone, as many scripts do.
UNLIKE, ONE_ONLY = ((1, 2), (1, 2)), ((3, None), (3, 0))


@pytest.mark.parametrize(("kind", "case"), [("ddp", UNLIKE), ("plain", ONE_ONLY)], ids=["ddp", "plain"])
def test_ranks_that_load_states_of_unlike_steps_are_told_so(kind, case):
    # The rank that loaded compared steps with its peers before the next exchange; a peer that had not loaded sent
    # its gradient. Gloo met two sizes in one collective and ended the process.
    load, steps = case
    for outcome in run_alone(2, _unlike_steps, kind, laconic.topk(0.05), load):
        assert outcome.error == "GroupError"
        assert all(f"step {step}" in outcome.message for step in steps)
        assert "checkpoint" in outcome.message


def test_ranks_that_load_states_of_unlike_steps_are_told_so_by_a_reduced_vector_too():
    load, steps = ONE_ONLY
    for outcome, step in zip(run_alone(2, _unlike_steps, "ddp", laconic.randomk(0.05), load), steps, strict=True):
        assert outcome.error == "GroupError"
        assert f"at step {step}" in outcome.message


@pytest.mark.parametrize(
    ("method", "case"),
    [
        (laconic.topk(0.05, warmup_steps=9), UNLIKE),
        (laconic.randomk(0.05, warmup_steps=9), ONE_ONLY),
        (laconic.sdagc(3.0, scope="layer", values="exact"), ONE_ONLY),
    ],
    ids=["topk", "randomk", "sdagc"],
)
def test_so_they_are_where_the_size_of_a_message_depends_on_the_step(method, case):
    # With a warm-up the ranks' messages have unlike sizes; gloo then ends the process, and nobody is told anything.
    for outcome in run_alone(2, _unlike_steps, "plain", method, case[0]):
        assert outcome.exitcode == 0
        assert outcome.error == "GroupError"


def test_so_they_are_where_only_some_steps_are_measured():
    # Measuring adds rounds to an exchange: at unlike steps one rank reduces where the other gathers.
    for outcome in run_alone(2, _unlike_steps, "plain", laconic.topk(0.05), UNLIKE[0], 2, timeout_seconds=5):
        assert outcome.exitcode == 0
        assert outcome.error == "GroupError"


def _unlike_runs(group, method):
    """Both ranks load a state of step 3, of runs on unlike data: as many steps, other rooms."""
    run = Run(group, "plain", method)
    states = []
    for first in (0, 50):
        run.link.detach()
        run = Run(group, "plain", method)
        run.train(range(first, first + 3))
        states.append(run.link.state_dict())
    assert states[0]["ledger"]["rooms"] != states[1]["ledger"]["rooms"]
    run.link.detach()
    run = Run(group, "plain", method)
    run.link.load_state_dict(states[dist.get_rank(group)])
    run.train([3])


def test_ranks_that_load_states_of_unlike_runs_are_told_before_unlike_sizes_meet():
    for outcome in run_alone(
        2, _unlike_runs, laconic.sdagc(3.0, whole_below=0, scope="layer", values="exact"), timeout_seconds=5
    ):
        assert outcome.exitcode == 0
        assert outcome.error == "GroupError"
        assert "at step 3 in state" in outcome.message


def _one_rank_goes_back(group, method):
    run = Run(group, "plain", method)
    start = run.link.state_dict()
    run.train(range(3))
    if dist.get_rank(group) == 0:
        run.link.load_state_dict(start)
    run.train([3])


@pytest.mark.parametrize("warmup_steps", [0, 9])
def test_a_rank_that_goes_back_alone_in_the_middle_of_a_run_is_told_and_not_killed(warmup_steps):
    # With a warm-up the rank that loaded compares steps before its next exchange, the others do not: a handshake
    # meets a gradient, and gloo ends the process that waits for the shorter one.
    method = laconic.topk(0.05, warmup_steps=warmup_steps)
    back, other = run_alone(2, _one_rank_goes_back, method, timeout_seconds=5)
    assert back.exitcode == 0
    assert back.error in ("GroupError", "LaconicError")
    assert other.error in ("GroupError", "ExchangeError")


def _other_format(group):
    def run(memory_format):
        model = nn.Conv2d(3, 8, 3).to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return attach(model, optimizer, laconic.topk(0.05), group)

    state = run(torch.channels_last).state_dict()
    run(torch.channels_last).load_state_dict(state)
    with pytest.raises(ValueError, match=r"other memory formats.*weight.*channels_last"):
        run(torch.contiguous_format).load_state_dict(state)


def test_a_state_of_another_memory_format_is_refused(pool):
    # What is owed lies as the parameter does: taken up in another order it would belong to other entries.
    pool.run(2, _other_format)
