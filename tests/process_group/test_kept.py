"""What frameworks' checkpoints keep for each rank: on another number of ranks nothing of it is lost."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.integrations.kept import go_on, part_of
from models import Mlp, loss

METHODS = {
    "topk": laconic.topk(0.05, whole_below=0),
    "celgc": laconic.celgc(4, send=laconic.topk(0.05, whole_below=0)),
}


def _attached(group, name):
    torch.manual_seed(1)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, laconic.attach(model, optimizer, METHODS[name], group=group)


def _kept(group, name):
    """Train for six steps, in the middle of a round of four, and return what is kept."""
    model, optimizer, link = _attached(group, name)
    for step in range(6):
        loss(model, group.rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()
    part = part_of(link, model)
    with link.averaged():
        mean = {key: value.clone() for key, value in model.state_dict().items()}
    link.detach()
    return part, mean


def _gone_on(group, name, parts, mean):
    model, _, link = _attached(group, name)
    model.load_state_dict(mean)
    go_on(link, model, parts)
    owed = link.state_dict()["memory"]["owed"]
    link.detach()
    return owed, dict(model.named_parameters())


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_on_another_number_of_ranks_the_mean_of_what_is_owed_stays(pool, name, ranks):
    kept = pool.control(2, _kept, name)
    parts, mean = [part for part, _ in kept], kept[0][1]
    after = pool.run(ranks, _gone_on, name, parts, mean)
    for parameter in parts[0]["link"]["memory"]["owed"]:
        was = sum(part["link"]["memory"]["owed"][parameter] for part in parts) / 2
        stays = sum(owed[parameter] for owed, _ in after) / ranks
        torch.testing.assert_close(stays, was)
        assert was.any()


@pytest.mark.parametrize("ranks", [1, 4])
def test_on_another_number_of_ranks_a_round_ends_with_the_mean_of_the_models(pool, ranks):
    kept = pool.control(2, _kept, "celgc")
    (first, mean), (second, _) = kept
    assert any(not torch.equal(a, second["parameters"][name]) for name, a in first["parameters"].items())
    for _, model in pool.run(ranks, _gone_on, "celgc", [first, second], mean):
        for name, value in mean.items():
            torch.testing.assert_close(model[name].detach(), value)
