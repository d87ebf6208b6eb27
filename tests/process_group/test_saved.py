"""Links saved by torch.distributed.checkpoint: to the same bits on as many ranks, with nothing lost on others."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import laconic
from models import Mlp, inner, loss, wrap
from pool import run_alone

METHODS = {
    "topk": laconic.topk(0.05, whole_below=0),
    "sdagc": laconic.sdagc(6.0, whole_below=0),
    "powersgd": laconic.powersgd(1, least_ratio=1.0),
    "celgc": laconic.celgc(4),
    "spartan": laconic.spartan(4, density=0.1),
}
# In the middle of a round of four.
BEFORE, AFTER = 6, 5


def _attached(group, name, kind):
    torch.manual_seed(1)
    model = Mlp() if kind == "plain" else wrap(Mlp(), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if name == "sdagc" else 0.0)
    own = {"group": group} if kind == "plain" else {}
    return model, optimizer, laconic.attach(model, optimizer, METHODS[name], **own)


def _train(model, optimizer, group, steps):
    for step in steps:
        loss(model, group.rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()


def _parts(model, link):
    return {"model": inner(model).state_dict(), "link": laconic.LinkState(link)}


def _saved(group, name, kind, folder):
    model, optimizer, link = _attached(group, name, kind)
    _train(model, optimizer, group, range(BEFORE))
    dcp.save(_parts(model, link), checkpoint_id=folder, process_group=group)
    _train(model, optimizer, group, range(BEFORE, BEFORE + AFTER))
    link.finish()
    link.detach()
    return [p.detach().clone() for p in inner(model).parameters()]


def _gone_on(group, name, kind, folder, steps):
    model, optimizer, link = _attached(group, name, kind)
    mine = {"model": inner(model).state_dict()}
    dcp.load(mine, checkpoint_id=folder, process_group=group)
    inner(model).load_state_dict(mine["model"])
    laconic.LinkState(link).load_from(folder)
    _train(model, optimizer, group, steps)
    link.finish()
    link.detach()
    return [p.detach().clone() for p in inner(model).parameters()]


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("name", METHODS)
def test_on_as_many_ranks_it_goes_on_to_the_same_bits(pool, name, kind, tmp_path):
    straight = pool.run(2, _saved, name, kind, tmp_path)
    resumed = pool.run(2, _gone_on, name, kind, tmp_path, range(BEFORE, BEFORE + AFTER))
    for ours, theirs in zip(resumed, straight, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _saved_late(group, folder):
    """Save from a thread, which wants a group of its own, train on meanwhile, then go on from what was saved."""
    model, optimizer, link = _attached(group, "spartan", "plain")
    _train(model, optimizer, group, range(BEFORE))
    own = dist.new_group(backend="gloo")
    saving = dcp.async_save(_parts(model, link), checkpoint_id=folder, process_group=own)
    _train(model, optimizer, group, range(BEFORE, BEFORE + AFTER))
    saving.result()
    link.finish()
    link.detach()
    straight = [p.detach().clone() for p in model.parameters()]
    resumed = _gone_on(group, "spartan", "plain", folder, range(BEFORE, BEFORE + AFTER))
    return [torch.equal(a, b) for a, b in zip(straight, resumed, strict=True)]


def test_what_is_written_while_training_goes_on_is_what_was_there(tmp_path):
    for rank in run_alone(2, _saved_late, tmp_path, within_seconds=60):
        assert rank.message == ""
        assert all(rank.value)


def _owed_of(group, name, folder):
    model, _, link = _attached(group, name, "plain")
    laconic.LinkState(link).load_from(folder)
    state = link.state_dict()
    link.detach()
    return state["memory"].get("owed", {}), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", ["topk", "sdagc", "spartan"])
def test_on_another_number_of_ranks_what_is_owed_is_the_same_together(pool, name, ranks, tmp_path):
    pool.run(2, _saved, name, "plain", tmp_path)
    before = [owed for owed, _ in pool.run(2, _owed_of, name, tmp_path)]
    after, models = zip(*pool.run(ranks, _owed_of, name, tmp_path), strict=True)
    for part in before[0]:
        mean = torch.stack([owed[part] for owed in before]).mean(0)
        torch.testing.assert_close(torch.stack([owed[part] for owed in after]).mean(0), mean)
    for model in models[1:]:
        assert all(torch.equal(a, b) for a, b in zip(model, models[0], strict=True))
    ends = pool.run(ranks, _gone_on, name, "plain", tmp_path, range(BEFORE, BEFORE + AFTER))
    for weights in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(weights, ends[0], strict=True))


def _of_nothing(group, folder):
    model, _, link = _attached(group, "topk", "plain")
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder, process_group=group)
    try:
        laconic.LinkState(link).load_from(folder)
    except ValueError as error:
        return str(error)
    return ""


def test_a_checkpoint_without_a_link_says_so(pool, tmp_path):
    (said,) = pool.run(1, _of_nothing, tmp_path)
    assert "the checkpoint has nothing of a link under 'link'" in said


def _other_method(group, folder):
    _, _, link = _attached(group, "celgc", "plain")
    try:
        laconic.LinkState(link).load_from(folder)
    except ValueError as error:
        return str(error)
    return ""


def test_a_checkpoint_of_every_step_is_refused_by_rounds_on_any_number_of_ranks(pool, tmp_path):
    """On another number it ended in a KeyError: models were asked for that methods of every step do not save."""
    pool.run(2, _saved, "topk", "plain", tmp_path)
    for ranks in (2, 1):
        assert all("the saved rounds lack" in said for said in pool.run(ranks, _other_method, tmp_path))


def _its_own_kind(group):
    _, _, link = _attached(group, "topk", "plain")
    return isinstance(laconic.LinkState(link), Stateful)


def test_it_is_what_torch_calls_stateful(pool):
    assert pool.run(1, _its_own_kind) == [True]
