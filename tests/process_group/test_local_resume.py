"""Save in the middle of a round of local steps, load in fresh objects, go on: the same bits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.errors import GroupError
from models import attach, build, digest, memory_bits, train, weights
from pool import run_alone

TOPK = laconic.topk(0.05, whole_below=0)
METHODS = {
    "celgc": laconic.celgc(4, clip=0.2),
    "celgc, some sent": laconic.celgc(4, send=TOPK),
    "celgc, restarted": laconic.celgc(4, send=TOPK, restart=0.5),
    "celgc by max": laconic.celgc(4, clip=0.2, norm_by="max"),
    "celgc of a sample": laconic.celgc(4, participants=1),
    "growing": laconic.celgc(6, period="growing", over_steps=8),
    "drift": laconic.celgc(2, period="drift"),
    "diloco": laconic.diloco(4, momentum=0.9),
    "streamed": laconic.diloco(6, fragments=2, delay=2, mix=0.25),
    "streamed, some sent": laconic.diloco(6, fragments=2, delay=2, send=TOPK),
    "episode": laconic.episode(4, clip=0.2),
    "episode_pp": laconic.episode_pp(4, clip=0.2, participants=1),
    "post_local": laconic.post_local(4, start=3),
}
END = 13


def _path(folder, group, step):
    return f"{folder}/rank{dist.get_rank(group)}of{step}.pt"


class Run:
    """A training run with everything that a checkpoint must hold."""

    def __init__(self, group, kind, method) -> None:
        self.group = group
        self.model, self.optimizer, _ = build(group, kind, None)
        self.link = attach(self.model, self.optimizer, method, group)

    def _parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "link": self.link}

    def save(self, folder, step):
        state = {name: part.state_dict() for name, part in self._parts().items()}
        torch.save(state, _path(folder, self.group, step))

    def load(self, folder, step):
        state = torch.load(_path(folder, self.group, step), weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def train(self, steps):
        return train(self.model, self.optimizer, self.group, steps)

    def end(self):
        self.link.finish()
        stats = self.link.stats
        numbers = (stats.steps, stats.syncs, stats.wire_bytes, stats.collectives, stats.clipped_share, stats.every)
        return digest(weights(self.model)), memory_bits(self.link), numbers, (stats.drift, stats.drift_bound)


def _whole(group, kind, method):
    run = Run(group, kind, method)
    return run.train(range(END)), run.end()


def _saving(group, kind, method, steps, folder):
    """The first run goes on after each checkpoint, as real ones do."""
    run, seen = Run(group, kind, method), []
    for step in range(END):
        if step in steps:
            run.save(folder, step)
        seen += run.train([step])
    return seen, run.end()


def _resumed(group, kind, method, step, folder):
    torch.manual_seed(99)
    run = Run(group, kind, method)
    run.load(folder, step)
    return run.train(range(step, END)), run.end()


@pytest.mark.parametrize(
    ("kind", "name"), [("plain", n) for n in METHODS] + [("ddp", n) for n in ("celgc", "streamed", "post_local")]
)
def test_a_run_goes_on_with_the_same_bits_from_any_step_of_a_round(pool, tmp_path, kind, name):
    # Step 2 is one in which a drift of "streamed" is in flight.
    method, steps = METHODS[name], (1, 2, 7)
    whole = pool.run(2, _whole, kind, method)
    # To save is to look: what is in flight is waited for, and applied no earlier than without.
    assert pool.run(2, _saving, kind, method, steps, str(tmp_path)) == whole
    for step in steps:
        resumed = pool.run(2, _resumed, kind, method, step, str(tmp_path))
        assert resumed == [(seen[step:], end) for seen, end in whole], step


def _killed(group, method, folder):
    run = Run(group, "ddp", method)
    run.train(range(2))
    run.save(folder, 2)
    raise SystemExit("killed")


def test_processes_that_never_met_the_first_run_go_on(pool, tmp_path):
    method = METHODS["streamed"]
    assert [o.error for o in run_alone(2, _killed, method, str(tmp_path))] == ["SystemExit"] * 2
    resumed = [o.value for o in run_alone(2, _resumed, "ddp", method, 2, str(tmp_path))]
    assert resumed == [(seen[2:], end) for seen, end in pool.run(2, _whole, "ddp", method)]


def _unlike(group, folder, steps):
    run = Run(group, "plain", METHODS["celgc, some sent"])
    run.load(folder, steps[dist.get_rank(group)])
    with pytest.raises(GroupError, match=r"unlike rounds: \[0, 1\].*same step on every rank"):
        run.train(range(4))
    return True


def test_a_rank_that_loads_another_round_is_told_and_so_are_all(pool, tmp_path):
    pool.run(2, _saving, "plain", METHODS["celgc, some sent"], (3, 7), str(tmp_path))
    assert pool.run(2, _unlike, str(tmp_path), (3, 7)) == [True, True]


def _alone(group, folder):
    run = Run(group, "plain", METHODS["celgc, some sent"])
    if dist.get_rank(group) == 1:
        run.load(folder, 4)
    with pytest.raises(GroupError, match="unlike rounds"):
        run.train(range(4))
    return True


def test_a_rank_that_loads_alone_is_told_and_so_are_all(pool, tmp_path):
    pool.run(2, _saving, "plain", METHODS["celgc, some sent"], (4,), str(tmp_path))
    assert pool.run(2, _alone, str(tmp_path)) == [True, True]


def _of_another(group, folder, name, step):
    run = Run(group, "plain", METHODS[name])
    before = run.train(range(1))
    bits = memory_bits(run.link)
    with pytest.raises(ValueError, match=r"saved rounds|units"):
        run.link.load_state_dict(torch.load(_path(folder, group, step), weights_only=True)["link"])
    assert memory_bits(run.link) == bits
    return before


@pytest.mark.parametrize("name", ["diloco", "episode", "streamed"])
def test_a_state_of_another_method_is_refused(pool, tmp_path, name):
    pool.run(1, _saving, "plain", METHODS["celgc"], (3,), str(tmp_path))
    pool.run(1, _of_another, str(tmp_path), name, 3)


def _of_gradients(group):
    model, optimizer, link = build(group, "plain", laconic.dense())
    train(model, optimizer, group, range(2))
    run = Run(group, "plain", laconic.celgc(4))
    with pytest.raises(ValueError, match="saved rounds lack"):
        run.link.load_state_dict(link.state_dict())


def test_a_state_without_rounds_is_refused(pool):
    pool.run(1, _of_gradients)
