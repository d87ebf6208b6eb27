"""Momentum moved into the method, in real loops: what is said, scalers, checkpoints, unused parameters, passes."""

from __future__ import annotations

import logging
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

import laconic
from models import Branches, Mlp, attach, digest, loss, memory_bits, train, weights, wrap

ALL_SENT = laconic.sdagc(0.0, masking=False, scope="layer", values="exact")
SPARSE = laconic.sdagc(3.0, clip=0.5, clip_scope="layer", scope="layer", values="exact")
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])
STEPS = 6


def _model(group, kind):
    torch.manual_seed(1)
    model = Mlp().double()
    return wrap(model, group) if kind == "ddp" else model


def _sparse(group, kind, nesterov):
    model = _model(group, kind)
    settings = {"lr": 0.05, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    link = attach(model, optimizer, SPARSE, group)
    return train(model, optimizer, group, range(STEPS), dtype=torch.float64), link.stats.density


@KINDS
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_with_little_sent_all_ranks_have_the_same_bits(pool, kind, nesterov):
    results = pool.run(3, _sparse, kind, nesterov)
    assert all(seen == results[0][0] for seen, _ in results)
    assert len(set(results[0][0])) == STEPS
    assert results[0][1] < 0.5


def test_a_plain_module_and_ddp_give_the_same_bits(pool):
    assert pool.run(3, _sparse, "plain", True) == pool.run(3, _sparse, "ddp", True)


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _said(group, method, optimizer):
    log, heard = logging.getLogger("laconic"), Heard()
    log.addHandler(heard)
    log.propagate = False
    try:
        model = _model(group, "ddp")
        made = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
            "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        }[optimizer](model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attach(model, made, method, group)
        seen = train(model, made, group, range(STEPS), dtype=torch.float64)
    finally:
        log.removeHandler(heard)
        log.propagate = True
    return heard.texts, seen


@pytest.mark.parametrize(
    ("method", "optimizer", "says"),
    [
        (
            laconic.sdagc(3.0, scope="layer", values="exact"),
            "momentum",
            ["sdagc takes momentum and weight decay over"],
        ),
        (laconic.dgc(0.05), "adam", ["dgc compensates SGD's momentum; Adam keeps its own"]),
        (
            laconic.sdagc(3.0, revision="none", scope="layer", values="exact"),
            "adam",
            ["sdagc compensates SGD's momentum; Adam keeps its own"],
        ),
        (laconic.sdagc(3.0, scope="layer", values="exact"), "sgd", []),
        (laconic.sdagc(3.0, momentum=False, revision="none", scope="layer", values="exact"), "momentum", []),
    ],
    ids=lambda value: str(getattr(value, "name", value))[:30],
)
def test_what_becomes_of_momentum_is_said_once_on_the_first_rank_and_training_goes_on(
    pool, method, optimizer, says
):
    first, *others = pool.run(3, _said, method, optimizer)
    assert len(first[0]) == len(says)
    assert all(start in text for start, text in zip(says, first[0], strict=True))
    assert all(texts == [] for texts, _ in others)
    assert all(seen == first[1] for _, seen in others)
    assert len(set(first[1])) == STEPS


def _warned(group, kind):
    model = _model(group, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attach(model, optimizer, laconic.sdagc(3.0, scope="layer", values="exact"), group)
    return [str(w.message) for w in caught]


@KINDS
def test_memory_in_update_units_does_not_warn_of_momentum_that_was_moved(pool, kind):
    assert pool.run(2, _warned, kind) == [[], []]


def _unlike(group):
    model = _model(group, "plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 - 0.1 * dist.get_rank(group))
    attach(model, optimizer, SPARSE, group)
    with pytest.raises(laconic.GroupError) as caught:
        train(model, optimizer, group, [0], dtype=torch.float64)
    return str(caught.value)


def test_unlike_momenta_are_told_on_every_rank(pool):
    for told in pool.run(2, _unlike):
        assert "momenta" in told


def _moved_on_one(group):
    model = _model(group, "plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 * dist.get_rank(group))
    with pytest.raises(laconic.GroupError) as caught:
        attach(model, optimizer, SPARSE, group)
    return str(caught.value), optimizer.param_groups[0]["momentum"] == 0.9 * dist.get_rank(group)


def test_momentum_on_one_rank_only_is_told_at_attach_and_left_where_it_was(pool):
    for told, left in pool.run(2, _moved_on_one):
        assert "with momentum moved" in told
        assert left


def _scaled(group, kind, scale, infinity):
    """With a scaler where ``scale`` is given; rank 1 meets an infinity in step 2 if ``infinity``."""
    model = _model(group, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=2, enabled=scale is not None)
    link = attach(
        model,
        optimizer,
        laconic.sdagc(3.0, clip=0.02, scope="layer", values="exact"),
        group,
        scaler=scaler if scale else None,
    )
    rank = dist.get_rank(group)
    for step in range(STEPS):
        bad = infinity and (rank, step) == (1, 2)
        scaler.scale(loss(model, rank, step, dtype=torch.float64) * (float("inf") if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    shares = [layer.clipped_share for layer in link.stats.layers]
    return digest(weights(model)), memory_bits(link), shares, link.stats.skipped_steps


@KINDS
@pytest.mark.parametrize("infinity", [False, True], ids=["finite", "infinity"])
def test_a_loss_scale_does_not_show_in_clipping_velocity_or_decay(pool, kind, infinity):
    ours, plain = (pool.run(2, _scaled, kind, scale, infinity) for scale in (2.0**12, None))
    assert ours == plain
    assert ours[0][3] == infinity
    # The norm is clipped at 0.02 times the root of two: always, or the exam shows nothing.
    assert set(ours[0][2]) == {1.0}


class Run:
    """Momentum, Nesterov and decay, with all that a checkpoint holds."""

    def __init__(self, group, kind) -> None:
        self.group, self.model = group, _model(group, kind)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.1, total_steps=STEPS + 1, base_momentum=0.3, max_momentum=0.95
        )
        self.link = attach(
            self.model,
            self.optimizer,
            laconic.sdagc(3.0, law="target", density=0.05, scope="layer", values="exact"),
            group,
        )
        self.parts = (self.model, self.optimizer, self.schedule, self.link)

    def train(self, steps):
        return train(self.model, self.optimizer, self.group, steps, dtype=torch.float64, after=self.schedule.step)


def _resumed(group, kind, path, stop):
    run, path = Run(group, kind), f"{path}/rank{dist.get_rank(group)}.pt"
    seen = run.train(range(3))
    if stop:
        torch.save([part.state_dict() for part in run.parts], path)
        run.link.detach()
        run = Run(group, kind)
        for part, state in zip(run.parts, torch.load(path, weights_only=True), strict=True):
            part.load_state_dict(state)
    return seen + run.train(range(3, STEPS)), memory_bits(run.link), sorted(run.link.state_dict()["decay"])


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("ddp", 3), ("plain", 3)])
def test_velocity_and_decay_go_on_after_a_checkpoint_with_the_same_bits(pool, tmp_path, kind, ranks):
    straight, resumed = (pool.run(ranks, _resumed, kind, str(tmp_path), stop) for stop in (False, True))
    assert resumed == straight
    assert len(resumed[0][2]) == 8


RULES = {
    "turns": lambda rank, step: ["left", "right", "left right"][(rank + step) % 3],
    "nobody in odd steps": lambda rank, step: "left right" if step % 2 == 0 else "left",
}


def _unused(group, rule):
    torch.manual_seed(1)
    model = wrap(Branches(), group, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    attach(model, optimizer, SPARSE, group)
    rank, seen = dist.get_rank(group), []
    for step in range(STEPS):
        loss(model, rank, step, branches=RULES[rule](rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen


@pytest.mark.parametrize("rule", RULES)
def test_ranks_agree_with_parameters_that_some_or_all_of_them_do_not_use(pool, rule):
    first, *others = pool.run(3, _unused, rule)
    assert len(set(first)) == STEPS
    assert all(other == first for other in others)


def _accumulated(group, kind, method):
    model = _model(group, "ddp" if method is None else kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    link = attach(model, optimizer, method, group) if method else None
    rank = dist.get_rank(group)
    for step in range(3):
        if kind == "ddp" or method is None:
            with model.no_sync():
                (loss(model, rank, 2 * step, dtype=torch.float64) / 2).backward()
        else:
            (loss(model, rank, 2 * step, dtype=torch.float64) / 2).backward()
        (loss(model, rank, 2 * step + 1, dtype=torch.float64) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), link.stats.steps if link else 3


@KINDS
def test_velocity_takes_in_the_sum_of_accumulated_passes_once(pool, kind):
    ours, plain = (pool.run(2, _accumulated, kind, method) for method in (ALL_SENT, None))
    for (mine, steps), (theirs, _) in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
        assert steps == 3


def _exchanged_twice(group, accumulate):
    model = _model(group, "ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attach(model, optimizer, SPARSE, group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            with model.no_sync() if accumulate else nullcontext():
                loss(model, dist.get_rank(group), 2 * step, dtype=torch.float64).backward()
            loss(model, dist.get_rank(group), 2 * step + 1, dtype=torch.float64).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [str(w.message) for w in caught]


def test_passes_that_are_exchanged_one_by_one_are_warned_of_and_accumulated_ones_are_not(pool):
    # Each exchange is a step of the velocity, so two exchanges are not one of their sum.
    for told in pool.run(2, _exchanged_twice, False):
        assert told
        assert all("exchanged twice" in text and "no_sync" in text for text in told)
    assert pool.run(2, _exchanged_twice, True) == [[], []]
